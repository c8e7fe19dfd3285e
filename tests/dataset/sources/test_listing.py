import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from aiohttp import ClientConnectorError
from aiohttp.client_reqrep import ConnectionKey
from fsspec.implementations.memory import MemoryFileSystem

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.files.urls import resolve
from airflow_llm_provider.dataset.sources.formats import ReadOptions
from airflow_llm_provider.dataset.sources.listing import SourceFile, find_files
from airflow_llm_provider.dataset.sources.readers.files import Files
from airflow_llm_provider.dataset.sources.source import open_source
from airflow_llm_provider.errors import LLMInputError, LLMSourceNotFoundError, LLMStateError

CSV = b"x\n1\n"


@pytest.fixture(params=["local", "memory"])
def put(request, make_workbench):
    """Put files into a folder, and return a function from a pattern to the names it finds."""
    layout = make_workbench(request.param).layout

    def put(*names):
        for name in names:
            layout.storage.write_bytes(name, CSV)

        def find(pattern=""):
            url = f"{layout.storage.root}/{pattern}".rstrip("/")
            root = resolve(layout.storage.root)[1]
            return [file.path.removeprefix(root).strip("/") for file in find_files(url, resolve).files]

        find.root = layout.storage.root
        return find

    return put


class TestFindFiles:
    def test_finds_one_file(self, put):
        assert put("a.csv", "b.csv")("a.csv") == ["a.csv"]

    def test_finds_all_files_below_a_folder_sorted(self, put):
        assert put("b.csv", "a/z.csv", "a/b/c.csv", "a.csv")() == ["a.csv", "a/b/c.csv", "a/z.csv", "b.csv"]

    def test_passes_over_names_of_others(self, put):
        find = put("a.csv", "_SUCCESS", ".hidden.csv", "_temporary/0/b.csv", ".git/c.csv", "d/_e.csv")
        assert find() == ["a.csv"]
        assert find("*") == ["a.csv"]
        assert find("**/*.csv") == ["a.csv"]

    def test_finds_hidden_names_that_are_named(self, put):
        find = put("_a.csv", "_t/b.csv", ".c.csv")
        assert find("_a.csv") == ["_a.csv"]
        assert find("_t") == ["_t/b.csv"]
        assert find("_t/*.csv") == ["_t/b.csv"]
        assert find("_*.csv") == ["_a.csv"]
        assert find(".*") == [".c.csv"]

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("*.csv", ["a.csv", "b.csv"]),
            ("?.csv", ["a.csv", "b.csv"]),
            ("[b-z].csv", ["b.csv"]),
            ("d=*/x.csv", ["d=1/x.csv", "d=2/x.csv"]),
            ("d=1*", ["d=1/x.csv", "d=1/y/z.csv"]),
            ("**/x.csv", ["d=1/x.csv", "d=2/x.csv"]),
            ("**/z.csv", ["d=1/y/z.csv"]),
            ("d=1/**", ["d=1/x.csv", "d=1/y/z.csv"]),
            ("*/*/*.csv", ["d=1/y/z.csv"]),
        ],
    )
    def test_knows_globs(self, put, pattern, found):
        assert put("a.csv", "b.csv", "d=1/x.csv", "d=2/x.csv", "d=1/y/z.csv")(pattern) == found

    def test_a_name_with_glob_characters_is_taken_literally_when_it_is_there(self, put):
        find = put("a[1].csv", "a1.csv", "b*.csv")
        assert find("a[1].csv") == ["a[1].csv"]
        assert find("b*.csv") == ["b*.csv"]
        assert find("a[1]*.csv") == ["a1.csv"]

    @pytest.mark.parametrize("pattern", ["nosuch.csv", "no/such/*.csv", "*.parquet", "**/*.x"])
    def test_nothing_found_names_the_pattern(self, put, pattern):
        with pytest.raises(LLMSourceNotFoundError, match="nothing matches") as caught:
            put("a.csv")(pattern)
        assert pattern in str(caught.value)

    def test_an_empty_folder_says_so(self, put):
        with pytest.raises(LLMSourceNotFoundError, match="holds no files"):
            put("d/_x")("d")

    def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(self):
        class Forbidden(MemoryFileSystem):
            def ls(self, path, detail=True, **kwargs):
                if path.endswith("secret"):
                    raise PermissionError("Access Denied")
                return super().ls(path, detail=detail, **kwargs)

        fs = Forbidden()
        fs.pipe_file("/forbidden-listing/a.csv", CSV)
        fs.pipe_file("/forbidden-listing/secret/b.csv", CSV)
        for pattern in ("", "/**/*.csv", "/*/*.csv"):
            with pytest.raises(LLMStateError, match="could not be listed.*Access Denied"):
                find_files("x://", lambda url, p=pattern: (fs, f"/forbidden-listing{p}"))
        fs.rm("/forbidden-listing", recursive=True)

    def test_reads_partitions_from_folder_names(self, put):
        find = put("ds=2026-01-01/c=a%20b/x.csv", "ds=__HIVE_DEFAULT_PARTITION__/c=é/x.csv")
        files = find_files(find.root, resolve).files
        assert [file.partitions for file in files] == [
            (("ds", "2026-01-01"), ("c", "a b")),
            (("ds", None), ("c", "é")),
        ]

    def test_only_folders_below_the_root_are_partitions(self, put):
        find = put("ds=1/c=2/x.csv")
        assert find_files(f"{find.root}/ds=1/*/x.csv", resolve).files[0].partitions == (("c", "2"),)
        assert find_files(f"{find.root}/ds=1/c=2/x.csv", resolve).files[0].partitions == ()


class TestLinks:
    @pytest.fixture
    def folder(self, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "a.csv").write_bytes(CSV)
        (tmp_path / "in").mkdir()
        return tmp_path

    def names(self, url):
        return [file.path.rpartition("/in/")[2] for file in find_files(str(url), resolve).files]

    def test_to_files_and_folders_are_followed(self, folder):
        (folder / "in" / "l.csv").symlink_to(folder / "real" / "a.csv")
        (folder / "in" / "d").symlink_to(folder / "real")
        assert self.names(folder / "in") == ["d/a.csv", "l.csv"]
        assert self.names(f"{folder}/in/*.csv") == ["l.csv"]
        assert self.names(f"{folder}/in/**/*.csv") == ["d/a.csv", "l.csv"]
        assert self.names(folder / "in" / "d") == ["d/a.csv"]
        (file, _) = open_source(str(folder / "in")).files
        assert (file.size, file.version) == (4, str((folder / "real" / "a.csv").stat().st_mtime))

    @pytest.mark.parametrize("pattern", ["in", "in/*.csv", "in/**", "in/gone.csv", "in/gone*"])
    def test_that_lead_nowhere_are_errors_and_not_absent_files(self, folder, pattern):
        (folder / "in" / "gone.csv").symlink_to(folder / "late.csv")
        (folder / "in" / "here.csv").write_bytes(CSV)
        with pytest.raises(LLMStateError, match=r"in/gone\.csv is a link to .*late\.csv, which is not there"):
            find_files(f"{folder}/{pattern}", resolve)

    @pytest.mark.parametrize("pattern", ["lake", "lake/a.csv", "lake/*.csv", "lake/ds=1/**/*.csv"])
    def test_on_the_way_that_lead_nowhere_are_errors(self, folder, pattern):
        (folder / "lake").symlink_to("/mnt/nosuch-mount")
        with pytest.raises(LLMStateError, match="lake is a link to /mnt/nosuch-mount, which is not there"):
            find_files(f"{folder}/{pattern}", resolve)

    def test_that_are_not_taken_may_lead_nowhere(self, folder):
        (folder / "in" / ".lock").symlink_to("user@host:1")
        (folder / "in" / "other.txt").symlink_to("nowhere")
        (folder / "in" / "a.csv").write_bytes(CSV)
        assert self.names(f"{folder}/in/*.csv") == ["a.csv"]

    @pytest.mark.parametrize("pattern", ["", "/**/*.csv"])
    def test_in_a_circle_are_named(self, folder, pattern):
        (folder / "in" / "a").mkdir()
        (folder / "in" / "b").mkdir()
        (folder / "in" / "a" / "to_b").symlink_to(folder / "in" / "b")
        (folder / "in" / "b" / "to_a").symlink_to(folder / "in" / "a")
        with pytest.raises(LLMInputError, match="is a link to a folder that it lies in"):
            find_files(f"{folder}/in{pattern}", resolve)

    def test_a_changed_target_is_noticed(self, folder):
        (folder / "in" / "l.csv").symlink_to(folder / "real" / "a.csv")
        source = open_source(str(folder / "in"))
        source.check_unchanged()
        (folder / "real" / "a.csv").write_bytes(CSV + b"2\n")
        with pytest.raises(LLMStateError, match="changed while it was read"):
            source.check_unchanged()


class TestHttp:
    """B13: what cannot be reached is not absent."""

    @pytest.fixture
    def serve(self):
        """Answer every request with one status."""
        servers = []

        def serve(status):
            class Answer(BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(CSV)))
                    self.end_headers()
                    if self.command == "GET":
                        self.wfile.write(CSV)

                do_HEAD = do_GET  # noqa: N815 -- the standard library's name

                def log_message(self, *_):
                    return None

            server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            servers.append(server)
            return f"http://127.0.0.1:{server.server_port}/a.csv"

        yield serve
        for server in servers:
            server.shutdown()
            server.server_close()

    def test_a_refused_connection_is_said(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}/a.csv"
            with pytest.raises(LLMStateError, match=r"a\.csv could not be looked up: .*[Cc]onnect"):
                open_source(url)

    @pytest.mark.parametrize("status", [401, 403, 500, 503])
    def test_a_refusal_is_said(self, serve, status):
        with pytest.raises(LLMStateError, match=f"could not be looked up: ClientResponseError: {status}"):
            open_source(serve(status))

    @pytest.mark.parametrize("status", [404, 410])
    def test_what_is_not_there_is_absent(self, serve, status):
        with pytest.raises(LLMSourceNotFoundError, match="nothing matches"):
            open_source(serve(status))

    def test_a_server_that_goes_away_is_not_a_file_that_is_gone(self, serve):
        files = Files(Refusing(), (), "utf-8")
        file = SourceFile(uri="u", path="u", size=1, version="")
        with (
            pytest.raises(LLMStateError, match="could not be read: ClientConnectorError"),
            files.open_raw(file),
        ):
            pass

    def test_what_is_there_is_read(self, serve):
        source = open_source(serve(200))
        assert [batch.to_pylist() for batch in source.batches()] == [[{"x": "1"}]]


class Refusing:
    """fsspec's HTTP filesystem when its server has gone away."""

    def open(self, path, mode):
        key = ConnectionKey("h", 80, False, None, None, None, None)
        raise FileNotFoundError(path) from ClientConnectorError(key, ConnectionRefusedError(111, "refused"))


class TestOpenSource:
    def rows(self, source):
        return [row for batch in source.batches() for row in batch.to_pylist()]

    def test_partitions_become_text_columns(self, put):
        source = open_source(put("ds=01/x.csv", "ds=02/x.csv").root)
        assert self.rows(source) == [{"x": "1", "ds": "01"}, {"x": "1", "ds": "02"}]

    def test_a_files_own_column_wins_over_the_folders(self, put):
        assert self.rows(open_source(put("x=7/x.csv").root)) == [{"x": "1"}]

    def test_folders_that_name_different_columns_are_refused(self, put):
        with pytest.raises(LLMInputError, match=r"name the columns \['a'\] and \['b'\]"):
            open_source(put("a=1/x.csv", "b=1/x.csv").root)

    def test_unknown_files_are_named(self, put):
        with pytest.raises(LLMInputError, match=r"unknown format: .*notes\.txt; give format="):
            open_source(put("a.csv", "notes.txt").root)

    def test_an_unknown_ending_reads_with_a_format(self, put):
        assert self.rows(open_source(put("notes.txt").root, options=ReadOptions(format="csv"))) == [
            {"x": "1"}
        ]

    def test_mixed_formats_are_named(self, put):
        with pytest.raises(LLMInputError, match=r"several formats: .*a\.csv.*b\.jsonl"):
            open_source(put("a.csv", "b.jsonl").root)

    def test_an_unknown_format_is_refused(self, put):
        with pytest.raises(LLMInputError, match="format is 'xml'"):
            open_source(put("a.csv").root, options=ReadOptions(format="xml"))

    def test_a_packed_parquet_file_is_of_unknown_format(self, put):
        with pytest.raises(LLMInputError, match="unknown format"):
            open_source(put("a.parquet.gz").root)

    def test_says_what_was_read(self, put):
        source = open_source(put("b.csv", "a.csv").root)
        assert [(entry["uri"][-5:], entry["size"]) for entry in source.snapshot()] == [
            ("a.csv", 4),
            ("b.csv", 4),
        ]
        assert all(entry["version"] for entry in source.snapshot())

    def test_a_file_that_comes_goes_or_changes_is_noticed(self, make_workbench):
        storage = make_workbench().layout.storage
        storage.write_bytes("a.csv", CSV)
        source = open_source(storage.root)
        source.check_unchanged()
        storage.write_bytes("b.csv", CSV)
        with pytest.raises(LLMStateError, match=r"changed while it was read \(.*b\.csv\)"):
            source.check_unchanged()
        storage.delete("b.csv")
        source.check_unchanged()
        storage.write_bytes("a.csv", CSV + b"2\n")
        with pytest.raises(LLMStateError, match="changed"):
            source.check_unchanged()
        storage.delete("a.csv")
        with pytest.raises(LLMStateError, match="changed"):
            source.check_unchanged()
        with pytest.raises(LLMStateError, match="gone since it was listed"):
            self.rows(source)

    @pytest.mark.parametrize(
        ("pattern", "destination", "apart"),
        [
            ("", "", False),
            ("", "out", False),
            ("in", "out", True),
            ("in", "in/out", False),
            ("in", "in2", True),
            ("in/*.csv", "in/out", True),
            ("in/*.csv", "in", True),
            ("in/**/*.csv", "in/out", False),
            ("in/**", "out", True),
            ("in/a.csv", "in/out", True),
            ("in/a.csv", "in", True),
        ],
    )
    def test_a_destination_inside_the_source_is_refused(self, put, pattern, destination, apart):
        root = put("in/a.csv").root
        source = open_source(f"{root}/{pattern}".rstrip("/"))
        layout = Layout(f"{root}/{destination}".rstrip("/"))
        if apart:
            source.check_apart(layout)
            return
        with pytest.raises(LLMInputError, match="lie inside each other"):
            source.check_apart(layout)

    @pytest.mark.parametrize(
        ("source", "destination"), [("real", "link/out"), ("link", "real/out"), ("link", "link/out")]
    )
    def test_a_link_to_the_source_is_no_way_round_that(self, tmp_path, source, destination):
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "a.csv").write_bytes(CSV)
        (tmp_path / "link").symlink_to(tmp_path / "real")
        with pytest.raises(LLMInputError, match="lie inside each other"):
            open_source(f"{tmp_path}/{source}").check_apart(Layout(f"{tmp_path}/{destination}"))

    @pytest.mark.parametrize(
        ("source", "destination", "apart"),
        [
            ("in", "out", False),
            ("in", "in/deep/link", False),
            ("in", "out/answers", False),
            ("in/**/*.csv", "out/answers", False),
            ("in/*", "out", False),
            ("in/deep/link/*.csv", "out/answers", True),
            ("in/*.csv", "out", True),
            ("in", "out2", True),
        ],
    )
    def test_a_link_inside_the_source_is_none_either_before_anything_is_written(
        self, tmp_path, source, destination, apart
    ):
        for folder in ("in/deep", "out"):
            (tmp_path / folder).mkdir(parents=True)
            (tmp_path / folder / "a.csv").write_bytes(CSV)
        (tmp_path / "in" / "a.csv").write_bytes(CSV)
        (tmp_path / "in" / "deep" / "link").symlink_to(tmp_path / "out")
        opened, layout = open_source(f"{tmp_path}/{source}"), Layout(f"{tmp_path}/{destination}")
        if apart:
            opened.check_apart(layout)
            return
        with pytest.raises(LLMInputError, match="lie inside each other"):
            opened.check_apart(layout)

    def test_a_run_never_reads_the_output_of_another_as_its_own_input(self, make_workbench, numbers):
        bench = make_workbench()
        bench.merge(bench.run(numbers(range(3))))
        source = open_source(f"{bench.layout.destination}/part-*.parquet")
        with pytest.raises(LLMInputError, match="lie inside each other"):
            source.check_apart(bench.layout)
        source.check_apart(Layout(f"{bench.layout.destination}-2"))

    def test_other_storage_is_always_apart(self, put):
        source = open_source(put("a.csv").root)
        other = "memory://x" if source.url.startswith("/") else "/x"
        source.check_apart(Layout(other))
