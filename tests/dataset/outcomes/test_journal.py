import os
import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.dataset.files.layout import Layout
from airflow_llm_provider.dataset.outcomes.journal import JournalWriter, read_journal, remove_journal
from airflow_llm_provider.dataset.outcomes.journal_line import read_line, write_line
from airflow_llm_provider.dataset.outcomes.record import Record, is_answered
from airflow_llm_provider.engine.call import Outcome
from airflow_llm_provider.engine.status import RowStatus
from airflow_llm_provider.engine.usage import Usage
from airflow_llm_provider.errors import LLMStateError

SHARD = "a" * 32


def record(number, **changes):
    outcome = {
        "index": -1,
        "status": RowStatus.SUCCESS,
        "text": f"answer {number}\nwith a line\u2028and more",
        "model": "m-1",
        "finish_reason": "stop",
        "usage": Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1),
        "cost_usd": 0.1 + 0.2,
        "attempts": 2,
        "latency_ms": 1234.5678,
        "request_id": "req",
        "account": "llm_default",
    }
    return Record(number.to_bytes(16, "big"), number, Outcome(**{**outcome, **changes}))


def wait_for_syncs():
    for thread in threading.enumerate():
        if thread.name == "llm-journal":
            thread.join()


class TestJournalLine:
    @given(
        st.builds(
            Outcome,
            index=st.just(-1),
            status=st.sampled_from(RowStatus),
            text=st.none() | st.text(st.characters(exclude_categories=("Cs",))),
            code=st.none() | st.just("http_503"),
            message=st.none() | st.just("what"),
            usage=st.builds(Usage, prompt_tokens=st.integers(0, 2**40)),
            cost_usd=st.none() | st.floats(0, 10),
            attempts=st.integers(0, 9),
            latency_ms=st.none() | st.floats(0, 1e9),
        )
    )
    def test_comes_back_as_it_was(self, outcome):
        line = write_line(Record(b"f" * 16, 3, outcome))
        assert line.count(b"\n") == 1
        assert read_line(line[:-1]) == Record(b"f" * 16, 3, outcome)

    def test_D4_halves_of_surrogates_are_replaced(self):
        line = write_line(record(1, text="ok \ud83d end"))
        assert read_line(line[:-1]).outcome.text == "ok \ufffd end"

    @given(st.data())
    def test_I4_any_damage_is_noticed(self, data):
        line = bytearray(write_line(record(7))[:-1])
        position = data.draw(st.integers(0, len(line) - 1))
        line[position] ^= data.draw(st.integers(1, 255))
        assert read_line(bytes(line)) is None

    @pytest.mark.parametrize("line", [b"", b" ", b"00000000 ", b"8587d865 abc", b"x"])
    def test_other_lines_are_no_records(self, line):
        assert read_line(line) is None


class TestJournal:
    def test_no_journal_is_no_records(self, workbench):
        content = read_journal(workbench.layout, SHARD)
        assert (content.records, content.corrupt, content.files) == ([], 0, ())

    def test_holds_what_was_written(self, workbench):
        with JournalWriter(workbench.layout, SHARD, part_seconds=0) as journal:
            for number in range(20):
                journal.append(record(number))
        content = read_journal(workbench.layout, SHARD)
        assert content.records == [record(number) for number in range(20)]
        assert content.corrupt == 0
        assert set(content.files) == set(journal.files)

    def test_a_writer_without_records_writes_nothing(self, workbench):
        with JournalWriter(workbench.layout, SHARD) as journal:
            journal.flush()
        assert workbench.files() == []
        assert journal.files == ()

    def test_a_flush_puts_everything_on_storage(self, workbench):
        with JournalWriter(workbench.layout, SHARD, part_seconds=3600) as journal:
            journal.append(record(1))
            journal.append(record(2))
            journal.flush()
            assert len(read_journal(workbench.layout, SHARD).records) == 2
            journal.append(record(3))
            journal.flush()
            assert len(read_journal(workbench.layout, SHARD).records) == 3

    def test_two_writers_never_mix(self, workbench):
        writers = [JournalWriter(workbench.layout, SHARD, part_seconds=0) for _ in range(2)]
        threads = [
            threading.Thread(target=lambda w=w, n=n: [w.append(record(n * 100 + i)) for i in range(50)])
            for n, w in enumerate(writers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for writer in writers:
            writer.close()
        content = read_journal(workbench.layout, SHARD)
        assert content.corrupt == 0
        assert {r.occurrence for r in content.records} == {*range(50), *range(100, 150)}

    def test_removing_keeps_the_files_of_other_writers(self, workbench):
        with JournalWriter(workbench.layout, SHARD) as one, JournalWriter(workbench.layout, SHARD) as other:
            one.append(record(1))
            other.append(record(2))
            one.flush()
            other.flush()
            remove_journal(workbench.layout, SHARD, one.files)
            assert [r.occurrence for r in read_journal(workbench.layout, SHARD).records] == [2]
        remove_journal(workbench.layout, SHARD, other.files)
        assert workbench.files() == []

    def test_a_record_after_the_end_is_refused(self, workbench):
        journal = JournalWriter(workbench.layout, SHARD)
        journal.append(record(1))
        journal.close()
        journal.close()
        with pytest.raises(LLMStateError, match="is closed"):
            journal.append(record(2))

    def test_I4_a_torn_tail_costs_only_the_torn_record(self, workbench):
        with JournalWriter(workbench.layout, SHARD, part_seconds=3600) as journal:
            for number in range(3):
                journal.append(record(number))
        (name,) = {read_journal(workbench.layout, SHARD).files[-1]}
        whole = workbench.layout.storage.read_bytes(name)
        last = len(write_line(record(2)))
        for cut in (1, 2, 10, last - 1, last):
            workbench.layout.storage.write_bytes(name, whole[:-cut])
            content = read_journal(workbench.layout, SHARD)
            kept = 3 if cut == 1 else 2
            assert len(content.records) == kept
            assert content.corrupt == (0 if cut in (1, last) else 1)

    def test_I4_damage_anywhere_costs_only_its_line(self, workbench):
        name = f"{workbench.layout.journal(SHARD)}/x.jsonl"
        lines = [write_line(record(number)) for number in range(4)]
        lines[1] = b"\x00" * 40 + b"\n"
        lines[2] = lines[2][:30] + b"\n"
        workbench.layout.storage.write_bytes(name, b"".join(lines))
        content = read_journal(workbench.layout, SHARD)
        assert [r.occurrence for r in content.records] == [0, 3]
        assert content.corrupt == 2


class TestLocalJournal:
    def test_I1_kill_9_loses_nothing_that_was_written(self, bench):
        script = (
            "import os, signal, sys\n"
            "from airflow_llm_provider.dataset.outcomes.journal import JournalWriter\n"
            "from airflow_llm_provider.dataset.files.layout import Layout\n"
            "from airflow_llm_provider.dataset.outcomes.record import Record\n"
            "from airflow_llm_provider.engine.call import Outcome\n"
            "from airflow_llm_provider.engine.status import RowStatus\n"
            "journal = JournalWriter(Layout(sys.argv[1]), 'a' * 32, sync_seconds=1e9)\n"
            "for n in range(50):\n"
            "    journal.append(Record(bytes(16), n, Outcome(index=0, status=RowStatus.SUCCESS, text='x')))\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        done = subprocess.run([sys.executable, "-c", script, bench.layout.destination], check=False)
        assert done.returncode == -signal.SIGKILL
        content = read_journal(bench.layout, SHARD)
        assert [r.occurrence for r in content.records] == list(range(50))
        assert content.corrupt == 0

    def test_syncs_by_the_clock_and_at_the_end(self, bench, monkeypatch):
        synced = []
        real = os.fsync
        monkeypatch.setattr("os.fsync", lambda handle: (synced.append(handle), real(handle)))
        now = [0.0]
        journal = JournalWriter(bench.layout, SHARD, monotonic=lambda: now[0], sync_seconds=1.0)
        for seconds, expected in ((0.0, 0), (0.9, 0), (1.0, 1), (1.5, 1), (2.0, 2)):
            now[0] = seconds
            journal.append(record(1))
            wait_for_syncs()
            assert len(synced) == expected
        journal.close()
        assert len(synced) == 3

    def test_nobody_waits_for_a_slow_disk_until_the_end(self, bench, monkeypatch):
        go_on = threading.Event()
        monkeypatch.setattr("os.fsync", lambda _: go_on.wait(30))
        journal = JournalWriter(bench.layout, SHARD, sync_seconds=0.0)
        for _ in range(5):
            journal.append(record(1))
        assert not go_on.is_set()
        go_on.set()
        journal.close()

    def test_a_failed_sync_stops_the_writer(self, bench, monkeypatch):
        def fail(_):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr("os.fsync", fail)
        journal = JournalWriter(bench.layout, SHARD, sync_seconds=0.0)
        journal.append(record(1))
        wait_for_syncs()
        with pytest.raises(LLMStateError, match="could not be written"):
            journal.append(record(2))
        with pytest.raises(LLMStateError):
            journal.close()

    def test_what_is_in_the_results_waits_for_no_sync(self, bench, monkeypatch):
        synced = []
        monkeypatch.setattr("os.fsync", synced.append)
        with JournalWriter(bench.layout, SHARD, sync_seconds=1e9) as journal:
            journal.append(record(1))
            journal.discard()
            with pytest.raises(LLMStateError, match="is closed"):
                journal.append(record(2))
        assert synced == []
        remove_journal(bench.layout, SHARD, journal.files)
        assert read_journal(bench.layout, SHARD).files == ()

    def test_a_record_after_a_failed_write_begins_on_its_own_line(self, bench, monkeypatch):
        journal = JournalWriter(bench.layout, SHARD)
        journal.append(record(1))
        real = os.write
        monkeypatch.setattr("os.write", lambda handle, data: real(handle, data[:20]))
        with pytest.raises(LLMStateError, match="disk is full"):
            journal.append(record(2))
        monkeypatch.setattr("os.write", real)
        journal.append(record(3))
        journal.close()
        content = read_journal(bench.layout, SHARD)
        assert [r.occurrence for r in content.records] == [1, 3]
        assert content.corrupt == 1


class TestJournalOnAnObjectStore:
    def test_a_failed_put_stops_the_writer(self):
        class Full:
            local = False

            def write_bytes(self, name, data):
                raise LLMStateError("no permission")

        class FakeLayout(Layout):
            storage = Full()

            def uri(self, name):
                return name

        journal = JournalWriter(FakeLayout("x://y"), SHARD, part_seconds=0)
        journal.append(record(1))
        with pytest.raises(LLMStateError, match="no permission"):
            journal.flush()
        with pytest.raises(LLMStateError, match="no permission"):
            journal.append(record(2))
        with pytest.raises(LLMStateError, match="no permission"):
            journal.close()

    def test_what_is_in_the_results_is_not_put_any_more(self, make_workbench):
        bench = make_workbench("memory")
        with JournalWriter(bench.layout, SHARD, part_seconds=1e9) as journal:
            journal.append(record(1))
            journal.flush()
            journal.append(record(2))
            journal.discard()
            with pytest.raises(LLMStateError, match="is closed"):
                journal.append(record(3))
        # Every file that was put is known, and can be removed.
        assert [r.occurrence for r in read_journal(bench.layout, SHARD).records] == [1]
        assert read_journal(bench.layout, SHARD).files == journal.files

    def test_nobody_waits_for_a_put(self, make_workbench):
        bench = make_workbench("memory")
        started, go_on = threading.Event(), threading.Event()
        storage = bench.layout.storage
        real = storage.write_bytes

        def slow(name, data):
            started.set()
            go_on.wait(10)
            real(name, data)

        storage.write_bytes = slow
        journal = JournalWriter(bench.layout, SHARD, part_seconds=0)
        journal.append(record(0))
        assert started.wait(10)
        for number in range(1, 100):
            journal.append(record(number))
        go_on.set()
        journal.close()
        content = read_journal(bench.layout, SHARD)
        assert len(content.records) == 100
        assert len(content.files) == 2


class TestIsAnswered:
    @pytest.mark.parametrize(
        ("status", "finish_reason", "answered"),
        [
            ("success", "stop", True),
            ("truncated", "length", True),
            ("empty", "stop", True),
            ("refused", "stop", True),
            ("invalid_output", "stop", True),
            ("content_filter", "content_filter", True),
            ("content_filter", None, False),
            ("error", None, False),
            ("rejected", None, False),
            ("context_too_long", None, False),
            ("empty_input", None, False),
        ],
    )
    def test_only_billed_rows_are(self, status, finish_reason, answered):
        outcome = Outcome(index=0, status=RowStatus(status), finish_reason=finish_reason)
        assert is_answered(outcome) is answered
