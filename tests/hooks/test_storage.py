from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.io import store
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from airflow_llm_provider.errors import LLMInputError
from airflow_llm_provider.hooks.storage import storage_resolver

if TYPE_CHECKING:
    from pathlib import Path


class TestStorageResolver:
    @pytest.mark.parametrize("url", ["{}/in/a b?.csv", "file://{}/in/a b?.csv"])
    def test_reads_local_paths_and_file_urls_alike(self, tmp_path: Path, url: str) -> None:
        filesystem, path = storage_resolver("ignored_for_local_files")(url.format(tmp_path))
        assert isinstance(filesystem, LocalFileSystem)
        assert path == f"{tmp_path}/in/a b?.csv"

    def test_keeps_globs_and_at_signs_in_paths(self) -> None:
        _, path = storage_resolver()("file:///data/user@example.com/*/[ab]?.parquet")
        assert path == "/data/user@example.com/*/[ab]?.parquet"

    def test_falls_back_on_fsspec_for_schemes_without_an_airflow_provider(self) -> None:
        filesystem, path = storage_resolver()("memory://bucket/key")
        assert isinstance(filesystem, MemoryFileSystem)
        assert path == "/bucket/key"

    def test_a_connection_without_a_provider_to_use_it_is_refused(self) -> None:
        with pytest.raises(LLMInputError, match=r"gs: apache-airflow-providers-google"):
            storage_resolver("my_google")("gs://bucket/key")

    @pytest.mark.parametrize(
        ("conn_id", "url"), [("no_such", "s3://bucket/key"), (None, "s3://no_such@bucket/key")]
    )
    def test_a_connection_that_does_not_exist_is_refused(self, conn_id: str | None, url: str) -> None:
        with pytest.raises(LLMInputError, match="the storage connection 'no_such' does not exist"):
            storage_resolver(conn_id)(url)

    @pytest.mark.parametrize("url", ["foo://me:hunter2@host/x", "s3://me:hunter2@bucket/x"])
    def test_a_password_in_the_url_is_refused_and_not_repeated(self, url: str) -> None:
        with pytest.raises(LLMInputError, match="holds a password") as caught:
            storage_resolver()(url)
        assert "hunter2" not in str(caught.value)

    def test_a_scheme_that_nobody_serves_is_refused(self) -> None:
        with pytest.raises(LLMInputError, match="nosuch://"):
            storage_resolver()("nosuch://bucket/key")

    @pytest.mark.parametrize(
        ("url", "conn_id"),
        [("s3://bucket/in/*.csv", "from_argument"), ("s3://from_url@bucket/in/*.csv", "from_url")],
    )
    def test_uses_the_connection_in_the_url_before_its_own(
        self, monkeypatch: pytest.MonkeyPatch, url: str, conn_id: str
    ) -> None:
        seen: list[Any] = []
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", "aws://")

        class Registered(MemoryFileSystem):
            protocol = "s3"

        def attach(scheme: str, conn_id: str | None) -> store.ObjectStore:
            seen.append((scheme, conn_id))
            return store.ObjectStore(scheme, conn_id, fs=Registered())

        monkeypatch.setattr("airflow.sdk.io.has_fs", lambda scheme: scheme == "s3")
        monkeypatch.setattr("airflow.sdk.io.attach", attach)
        _, path = storage_resolver("from_argument")(url)
        assert seen == [("s3", conn_id)]
        assert path.lstrip("/").removeprefix("s3://") == "bucket/in/*.csv"
