import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.files.storage import BrokenFileError, MissingFileError, Storage
from airflow_llm_provider.dataset.files.urls import public_uri, resolve
from airflow_llm_provider.errors import LLMInputError, LLMStateError


@pytest.fixture
def storage(workbench):
    return workbench.layout.storage


class TestStorage:
    def test_a_missing_file_reads_as_none(self, storage):
        assert storage.read_bytes("no/such.json") is None
        assert storage.size("no/such.json") is None
        assert not storage.exists("no/such.json")

    def test_a_missing_folder_lists_nothing(self, storage):
        assert storage.files("nowhere") == []
        assert storage.folders("nowhere") == []

    def test_what_was_written_is_read(self, storage):
        storage.write_bytes("a/b.json", b"one")
        storage.write_bytes("a/b.json", b"two")
        assert storage.read_bytes("a/b.json") == b"two"
        assert storage.size("a/b.json") == 3

    def test_only_what_is_to_last_waits_for_the_disk(self, tmp_path, monkeypatch):
        synced = []
        monkeypatch.setattr("os.fsync", synced.append)
        storage = Layout(str(tmp_path)).storage
        storage.write_bytes("a.json", b"one", lasting=False)
        assert (storage.read_bytes("a.json"), synced) == (b"one", [])
        storage.write_bytes("a.json", b"two")
        assert storage.read_bytes("a.json") == b"two"
        # The file and its folder.
        assert len(synced) == 2

    def test_a_file_that_will_be_moved_is_synced_and_its_folder_when_it_has_come_there(
        self, tmp_path, monkeypatch
    ):
        synced = []
        monkeypatch.setattr("os.fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
        storage = Layout(str(tmp_path)).storage
        with storage.create("staging/a.json", staged=True) as file:
            file.write(b"one")
        storage.move("staging/a.json", "a.json")
        assert synced == [(tmp_path / "a.json").stat().st_ino, tmp_path.stat().st_ino]

    def test_lists_files_and_folders_sorted_and_relative_to_the_root(self, storage):
        for name in ("f/z.x", "f/a.x", "f/g/deep.x", "other.x"):
            storage.write_bytes(name, b"")
        assert storage.files("f") == ["f/a.x", "f/z.x"]
        assert storage.folders("f") == ["f/g"]
        assert storage.files("") == ["other.x"]

    def test_an_exception_while_writing_leaves_the_old_file(self, storage):
        storage.write_bytes("f.bin", b"old")

        class OwnError(Exception):
            pass

        def write_half():
            with storage.create("f.bin") as file:
                file.write(b"half")
                raise OwnError

        with pytest.raises(OwnError):
            write_half()
        assert storage.read_bytes("f.bin") == b"old"
        assert storage.files("") == ["f.bin"]

    def test_a_file_appears_only_when_it_is_whole(self, storage):
        with storage.create("f.parquet") as file:
            file.write(b"half")
            file.flush()
            assert storage.read_bytes("f.parquet") is None
            assert [name for name in storage.files("") if name.endswith(".parquet")] == []
            assert all(name.startswith(".") for name in storage.files(""))
        assert storage.read_bytes("f.parquet") == b"half"

    def test_deletes_files_and_whole_folders(self, storage):
        for name in ("f/a", "f/g/b", "h"):
            storage.write_bytes(name, b"")
        storage.delete("h")
        storage.delete("h")
        storage.delete_folder("f")
        storage.delete_folder("f")
        assert storage.files("") == []
        assert storage.folders("") == []

    def test_moves_a_file_over_another(self, storage):
        storage.write_bytes("old", b"1")
        storage.write_bytes("sub/new", b"2")
        storage.move("old", "sub/new")
        assert storage.read_bytes("sub/new") == b"1"
        assert not storage.exists("old")

    def test_opens_parquet_files(self, storage):
        with storage.create("t.parquet") as file:
            pq.write_table(pa.table({"x": [1, 2]}), file)
        with storage.open_parquet("t.parquet") as file:
            assert file.read().column("x").to_pylist() == [1, 2]

    def test_G14_tells_a_missing_parquet_file_from_a_broken_one(self, storage):
        with pytest.raises(MissingFileError, match="is missing"), storage.open_parquet("t.parquet"):
            pass
        with storage.create("t.parquet") as file:
            pq.write_table(pa.table({"x": list(range(1000))}), file)
        whole = storage.read_bytes("t.parquet")
        storage.write_bytes("t.parquet", whole[: len(whole) // 2])
        with pytest.raises(BrokenFileError, match="could not be read"), storage.open_parquet("t.parquet"):
            pass

    def test_a_folder_where_a_file_should_be_is_no_missing_file(self, storage):
        storage.write_bytes("f/file", b"")
        if storage.local:
            with pytest.raises(LLMStateError, match="could not be read"):
                storage.read_bytes("f")
            with pytest.raises(LLMStateError, match="could not be read"):
                storage.read_bytes("f/file/below")

    def test_many_writers_of_one_file_never_mix(self, storage):
        contents = [bytes([65 + n]) * 100_000 for n in range(8)]
        threads = [threading.Thread(target=storage.write_bytes, args=("f", content)) for content in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert storage.read_bytes("f") in contents
        assert storage.files("") == ["f"]


class ForbiddenFileSystem(MemoryFileSystem):
    """Refuses everything, as a bucket without permission does."""

    def _refuse(self, *args, **kwargs):
        raise PermissionError("Access Denied: https://user:pass@bucket/x")

    cat_file = pipe_file = put_file = info = ls = rm_file = cp_file = _open = _refuse


class TestUnreadableStorage:
    @pytest.fixture
    def storage(self):
        return Layout("secret://conn_id@bucket/x", lambda url: (ForbiddenFileSystem(), "/bucket/x")).storage

    @pytest.mark.parametrize(
        "attempt",
        [
            lambda s: s.read_bytes("f"),
            lambda s: s.exists("f"),
            lambda s: s.files("f"),
            lambda s: s.write_bytes("f", b""),
            lambda s: s.delete("f"),
            lambda s: s.move("f", "g"),
            lambda s: s.open_parquet("f").__enter__(),
            lambda s: s.create("f").__enter__() and s.write_bytes("f", b""),
        ],
    )
    def test_unknown_is_not_absent(self, storage, attempt):
        with pytest.raises(
            LLMStateError, match=r"(?s)secret://conn_id@bucket/x/[fg].*Access Denied"
        ) as caught:
            attempt(storage)
        assert "pass" not in str(caught.value)
        assert caught.value.__cause__ is not None

    def test_an_unknown_scheme_is_an_error_that_names_the_url(self):
        with pytest.raises(LLMStateError, match="nosuch://b/x could not be opened"):
            Layout("nosuch://b/x").storage.read_bytes("f")


class StaleFileSystem(MemoryFileSystem):
    """Lists from a cache until told not to, as s3fs does."""

    fresh = False

    def invalidate_cache(self, path=None):
        type(self).fresh = True

    def ls(self, path, detail=True, **kwargs):
        assert self.fresh, "listed from a stale cache"
        type(self).fresh = False
        return super().ls(path, detail=detail, **kwargs)


class TestListing:
    def test_never_trusts_a_cached_listing(self):
        storage = Layout("stale://x", lambda url: (StaleFileSystem(), "/stale-listing")).storage
        storage.write_bytes("f", b"")
        assert storage.files("") == ["f"]
        storage.delete_folder("")


class TestLocalStorage:
    @pytest.mark.parametrize("prefix", ["", "file://"])
    def test_takes_bare_paths_and_file_urls_alike(self, tmp_path, prefix):
        storage = Layout(f"{prefix}{tmp_path}/%41 #?&é").storage
        storage.write_bytes("f", b"x")
        assert (tmp_path / "%41 #?&é" / "f").read_bytes() == b"x"

    def test_a_relative_path_is_made_absolute(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert Layout("out").uri("f") == f"{tmp_path}/out/f"

    def test_a_home_folder_is_found(self):
        assert resolve("~/x")[1] == str(Path("~/x").expanduser())

    def test_a_killed_writer_leaves_only_a_hidden_file(self, tmp_path):
        script = (
            "import os, signal, sys\n"
            "from airflow_llm_provider.dataset.files.layout import Layout\n"
            "with Layout(sys.argv[1]).storage.create('part-00000.parquet') as file:\n"
            "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
        assert done.returncode == -signal.SIGKILL
        names = [path.name for path in tmp_path.iterdir()]
        assert len(names) == 1
        assert names[0].startswith(".")
        assert names[0].endswith(".tmp")

    def test_a_full_disk_is_a_state_error(self):
        with pytest.raises(LLMStateError, match="could not be written"):
            Layout("/dev/full/x").storage.write_bytes("f", b"x")

    def test_a_disk_that_fills_while_a_file_is_written_is_a_state_error(self, tmp_path):
        storage = Layout(str(tmp_path)).storage

        def write():
            with storage.create("f"):
                raise OSError(errno.ENOSPC, "No space left on device")

        with pytest.raises(LLMStateError, match="could not be written"):
            write()
        assert list(tmp_path.iterdir()) == []

    def test_remote_storage_is_not_local(self, make_workbench):
        assert type(make_workbench("memory").layout.storage) is Storage


class TestResolve:
    @pytest.mark.parametrize(
        "url", ["sftp://me:hunter2@host/x", "s3://key:hun@ter2@b/x", "simplecache::ftp://:hunter2@host/x"]
    )
    def test_a_password_in_a_url_is_refused_and_not_repeated(self, url):
        with pytest.raises(LLMInputError, match=r"\*\*\*@.* holds a password.*storage_conn_id") as caught:
            resolve(url)
        assert "hun" not in str(caught.value)

    def test_a_password_in_a_destination_is_refused_whoever_resolves_it(self):
        def resolver(url):
            return MemoryFileSystem(), "/out"

        with pytest.raises(LLMInputError, match="holds a password"):
            Layout("sftp://me:hunter2@host/out", resolver).uri("x")

    @pytest.mark.parametrize("url", ["memory://conn@b/a:b@c", "memory://b/x:y@z", "file:///a:b@c"])
    def test_what_only_looks_like_one_is_not(self, url):
        resolve(url)


class TestPublicUri:
    @pytest.mark.parametrize(
        ("uri", "shown"),
        [
            ("s3://key:secret@bucket/a b", "s3://***@bucket/a b"),
            ("s3://conn_id@bucket/a", "s3://conn_id@bucket/a"),
            ("https://h/x.csv?sig=abc&x=1", "https://h/x.csv"),
            ("https://h/x.csv?b&sig=abc", "https://h/x.csv"),
            ("https://token@h/x.csv", "https://***@h/x.csv"),
            ("gs://b/x?generation=1", "gs://b/x"),
            ("s3://b/m=?/ds=1/part-?.csv", "s3://b/m=?/ds=1/part-?.csv"),
            ("/local/what?.csv", "/local/what?.csv"),
        ],
    )
    def test_shows_no_secret(self, uri, shown):
        assert public_uri(uri) == shown
