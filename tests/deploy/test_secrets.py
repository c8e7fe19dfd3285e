from __future__ import annotations

import base64
import json
import stat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.deploy.__main__ import main
from airflow_llm_provider.deploy.secrets import make_secrets
from airflow_llm_provider.errors import LLMInputError

if TYPE_CHECKING:
    from pathlib import Path

URLS = {
    "DATABASE_URL": "postgresql://airflow:{password}@postgres:5432/airflow",
    "BROKER_URL": "redis://:{password}@redis:6379/0",
    "LIMITER_URL": "redis://:{password}@redis:6379/1",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "secrets"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


def contents(*folders: Path) -> dict[str, str]:
    return {path.name: path.read_text() for folder in folders for path in folder.iterdir()}


class TestMade:
    def test_no_two_deployments_share_a_secret(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            make_secrets(tmp_path / name, tmp_path / f"{name}-shared", URLS)
        one, two = (contents(tmp_path / name, tmp_path / f"{name}-shared") for name in ("one", "two"))
        assert one.keys() == two.keys()
        assert [name for name in one if one[name] == two[name]] == []

    def test_are_long_and_each_another(self, folder: Path, shared: Path) -> None:
        make_secrets(folder, shared, URLS)
        names = ("jwt_secret", "api_secret_key", "postgres_password", "redis_password", "admin_password")
        values = {contents(folder)[name] for name in names}
        assert len(values) == len(names)
        assert min(map(len, values)) >= 40
        assert len(base64.urlsafe_b64decode(contents(folder)["fernet_key"])) == 32

    def test_stay_at_the_next_start(self, folder: Path, shared: Path) -> None:
        make_secrets(folder, shared, URLS)
        before = contents(folder, shared)
        make_secrets(folder, shared, URLS)
        assert contents(folder, shared) == before

    def test_are_where_each_service_looks(self, folder: Path, shared: Path) -> None:
        make_secrets(folder, shared, URLS)
        made = contents(folder, shared)
        assert (
            made["sql_alchemy_conn"]
            == f"postgresql://airflow:{made['postgres_password']}@postgres:5432/airflow"
        )
        assert made["broker_url"] == f"redis://:{made['redis_password']}@redis:6379/0"
        assert made["limiter_url"] == f"redis://:{made['redis_password']}@redis:6379/1"
        assert made["redis.conf"] == f'requirepass "{made["redis_password"]}"\n'
        assert json.loads(made["ui_passwords.json"]) == {"admin": made["admin_password"]}

    def test_only_two_can_be_read_by_other_users(self, folder: Path, shared: Path) -> None:
        make_secrets(folder, shared, URLS)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert set(modes.values()) == {0o600}
        assert {path.name for path in shared.iterdir()} == {"postgres_password", "redis.conf"}

    def test_say_where_they_are_and_not_what(
        self,
        folder: Path,
        shared: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        for name, value in URLS.items():
            monkeypatch.setenv(name, value)
        assert main(["secrets", str(folder), str(shared)]) == 0
        said = capsys.readouterr().out
        assert str(folder / "ui_passwords.json") in said
        assert [name for name, value in contents(folder).items() if value in said] == []


class TestGiven:
    def test_are_taken(self, folder: Path, shared: Path) -> None:
        mine = {
            "POSTGRES_PASSWORD": "p-1",
            "REDIS_PASSWORD": "r-1",
            "AIRFLOW_ADMIN_PASSWORD": 'any "thing" %',
        }
        make_secrets(folder, shared, URLS | mine)
        made = contents(folder, shared)
        assert ":p-1@" in made["sql_alchemy_conn"]
        assert ":r-1@" in made["broker_url"]
        assert json.loads(made["ui_passwords.json"]) == {"admin": 'any "thing" %'}

    def test_change_a_login_at_any_time(self, folder: Path, shared: Path) -> None:
        make_secrets(folder, shared, URLS)
        make_secrets(folder, shared, URLS | {"AIRFLOW_ADMIN_PASSWORD": "new", "REDIS_PASSWORD": "new"})
        assert contents(folder)["admin_password"] == "new"
        assert ":new@" in contents(folder)["limiter_url"]

    @pytest.mark.parametrize(
        ("variable", "value", "loss"),
        [
            ("POSTGRES_PASSWORD", "another", "the database that was made with it"),
            ("AIRFLOW_FERNET_KEY", base64.urlsafe_b64encode(b"k" * 32).decode(), "the connections"),
        ],
    )
    def test_never_replace_what_data_depends_on(
        self, folder: Path, shared: Path, variable: str, value: str, loss: str
    ) -> None:
        make_secrets(folder, shared, URLS)
        before = contents(folder, shared)
        with pytest.raises(
            LLMInputError, match=f"{variable} is not the one of the first start, which would lose {loss}"
        ):
            make_secrets(folder, shared, URLS | {variable: value})
        assert contents(folder, shared) == before

    @given(st.text(min_size=1).filter(str.strip))
    def test_make_urls_with_one_meaning_or_are_refused_unsaid(
        self, tmp_path_factory: pytest.TempPathFactory, password: str
    ) -> None:
        from urllib.parse import urlsplit

        folder = tmp_path_factory.mktemp("made")
        refused = ""
        try:
            make_secrets(folder, folder / "shared", URLS | {"REDIS_PASSWORD": password})
        except LLMInputError as error:
            refused = str(error)
        if refused:
            assert "use letters, digits and -_.~ only" in refused
            assert not (folder / "broker_url").exists()
        else:
            assert urlsplit((folder / "broker_url").read_text()).password == password.strip()

    def test_must_be_a_fernet_key_to_be_one(self, folder: Path, shared: Path) -> None:
        with pytest.raises(LLMInputError, match="AIRFLOW_FERNET_KEY is no Fernet key: give 32 bytes"):
            make_secrets(folder, shared, URLS | {"AIRFLOW_FERNET_KEY": "short"})
        assert not folder.exists()

    def test_a_missing_url_is_named(
        self, folder: Path, shared: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["secrets", str(folder), str(shared)]) == 1
        assert "DATABASE_URL is not set" in capsys.readouterr().out
