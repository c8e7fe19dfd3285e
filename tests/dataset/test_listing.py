import pytest
from fsspec.implementations.memory import MemoryFileSystem

from airflow_llm_provider.dataset.formats import ReadOptions
from airflow_llm_provider.dataset.layout import Layout
from airflow_llm_provider.dataset.listing import find_files
from airflow_llm_provider.dataset.source import open_source
from airflow_llm_provider.dataset.urls import resolve
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
