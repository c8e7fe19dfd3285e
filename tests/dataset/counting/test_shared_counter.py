from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llm_provider.dataset.counting import counting_process, counting_program, shared_counter
from airflow_llm_provider.dataset.counting.bundle_counter import bundle_counter
from airflow_llm_provider.dataset.counting.counting_process import CountingProcess
from airflow_llm_provider.dataset.counting.shared_counter import SharedCounter

TEXTS = ["word " * n for n in range(300)] + ["", "退款申请已经提交 " * 20_000, "<|endoftext|>"]
#: Starts a process, tells its number, and waits.
PARENT = """
import sys
from airflow_llm_provider.dataset.counting.bundle_counter import bundle_counter
from airflow_llm_provider.dataset.counting.counting_process import CountingProcess
process = CountingProcess(bundle_counter("o200k_base"))
process.check()
print(process._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def alone():
    return bundle_counter("o200k_base")


@pytest.fixture
def process(alone):
    process = CountingProcess(alone)
    yield process
    process.close()


@pytest.fixture(scope="module")
def small_portions():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_counter, "_CHARACTERS_AT_A_TIME", 20)
        yield


def children() -> set[int]:
    # By psutil, as threads come and go (``/proc/self/task`` names some that are gone when they are read).
    return {child.pid for child in psutil.Process().children()}


class FakeProcess:
    """A process that answers, and is ready, as it is told."""

    def __init__(self, answer, ready=lambda: None):
        self.answer, self.check = answer, ready
        self.failed = False

    def count(self, texts):
        counts = self.answer(texts)
        self.failed = counts is None
        return counts

    def close(self):
        pass


def shared_with(alone, process):
    return SharedCounter(alone, start=lambda counter: process, worth=0)


class TestSharedCounter:
    def test_two_processes_count_as_one(self, alone):
        before = children()
        shared = SharedCounter(alone, worth=0)
        finishing = [shared.begin(TEXTS) for _ in range(3)]
        assert len(children() - before) == 1
        assert [finish() for finish in finishing] == [alone.count(TEXTS)] * 3
        shared.close()
        assert not children() - before
        assert shared.note is None

    @settings(max_examples=30)
    @given(batches=st.lists(st.lists(st.text(max_size=30), max_size=8), max_size=6))
    def test_batches_keep_their_counts_and_order(self, alone, small_portions, batches):
        shared = shared_with(alone, FakeProcess(alone.count))
        finishing = [shared.begin(texts) for texts in batches]
        assert [finish() for finish in finishing] == [alone.count(texts) for texts in batches]
        shared.close()

    def test_a_small_dataset_starts_none(self, alone):
        before = children()
        shared = SharedCounter(alone)
        assert shared.count(["a", "b b"]) == [1, 2]
        assert not children() - before
        shared.close()

    def test_one_core_starts_none(self, alone, monkeypatch):
        monkeypatch.setattr(shared_counter, "cores", lambda: 1)
        before = children()
        shared = SharedCounter(alone)
        assert shared.count(["word " * (1 << 18)]) == [(1 << 18) + 1]
        assert not children() - before
        shared.close()

    def test_nobody_waits_for_a_process_that_is_not_ready(self, alone, small_portions):
        ready = threading.Event()
        shared = shared_with(alone, FakeProcess(lambda texts: pytest.fail("asked"), ready.wait))
        assert shared.count(TEXTS) == alone.count(TEXTS)
        ready.set()
        shared.close()
        assert shared.note is None

    def test_a_process_that_fails_is_told_of_and_all_is_counted_here(self, alone):
        shared = shared_with(alone, FakeProcess(lambda texts: None))
        begun = shared.begin(TEXTS)
        assert [begun(), shared.count(["a b"])] == [alone.count(TEXTS), [2]]
        shared.close()
        assert "all tokens were counted, in one process" in shared.note

    def test_a_process_that_ends_midway_is_told_of_and_all_is_counted_here(self, alone):
        before = children()
        shared = SharedCounter(alone, worth=0)
        finishing = [shared.begin(TEXTS) for _ in range(3)]
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        assert [finish() for finish in finishing] == [alone.count(TEXTS)] * 3
        assert shared.count(TEXTS) == alone.count(TEXTS)
        shared.close()
        assert not children() - before

    def test_a_process_that_was_stopped_is_ended_and_all_is_counted_here(self, alone, process):
        process.check()
        os.kill(process._process.pid, signal.SIGSTOP)
        asked = threading.Event()

        class Ready(FakeProcess):
            def __init__(self):
                super().__init__(process.count)

            def count(self, texts):
                asked.set()
                return super().count(texts)

            def kill(self):
                process.kill()

        shared = SharedCounter(alone, start=lambda counter: Ready(), worth=0, patience=0.0)
        finish = shared.begin(TEXTS)
        assert asked.wait(60)
        assert finish() == alone.count(TEXTS)
        assert process.failed
        assert process._process.wait(60) == -signal.SIGKILL
        shared.close()
        assert "did not answer" in shared.note


class TestCountingProcess:
    @pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base", "o200k_harmony"])
    def test_counts_as_its_parent_does(self, encoding):
        counter = bundle_counter(encoding)
        process = CountingProcess(counter)
        process.check()
        assert process.count(TEXTS) == counter.count(TEXTS)
        assert process.count([]) == []
        assert not process.failed
        process.close()

    def test_texts_with_halves_of_surrogates_are_its_parents_to_clean(self, process):
        assert process.count(["ok \ud83d end"]) is None
        assert process.count(["a b"]) == [2]

    def test_gets_no_environment_in_which_secrets_may_be(self, alone, monkeypatch):
        monkeypatch.setenv("AIRFLOW_CONN_LLM_DEFAULT", "llm://:key@host")
        before = children()
        process = CountingProcess(alone)
        process.check()
        (pid,) = children() - before
        assert b"AIRFLOW" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert b"key" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        process.close()

    def test_survives_ctrl_c_in_the_terminal_of_its_parent(self, alone, process):
        process.check()
        os.kill(process._process.pid, signal.SIGINT)
        assert process.count(["a b"]) == [2]

    def test_ends_with_its_parent_however_that_ends(self):
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        end = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        parent.communicate()
        poll = select.poll()
        poll.register(end, select.POLLIN)
        assert poll.poll(30_000)
        os.close(end)

    @pytest.mark.parametrize("program", ["", "print('no counts')", "input(); print('x' * 99)"])
    def test_a_program_that_answers_otherwise_has_failed(self, alone, monkeypatch, tmp_path, program):
        path = tmp_path / "program.py"
        path.write_text(program)
        monkeypatch.setattr(counting_program, "__file__", str(path))
        process = CountingProcess(alone)
        process.check()
        assert process.failed
        assert process.count(["a"]) is None
        process.close()

    def test_counts_other_than_tiktokens_are_a_failure(self, process):
        process._counts = (1,)
        process.check()
        assert process.failed

    @pytest.mark.parametrize("executable", [None, "", "/nowhere/python"])
    def test_a_process_that_cannot_start_has_failed(self, alone, monkeypatch, executable):
        monkeypatch.setattr(counting_process.sys, "executable", executable)
        process = CountingProcess(alone)
        process.check()
        assert process.failed
        process.close()

    def test_a_program_with_python_inside_it_is_not_started(self, alone, monkeypatch, tmp_path):
        program = tmp_path / "uwsgi"
        program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        program.chmod(0o755)
        monkeypatch.setattr(counting_process.sys, "executable", str(program))
        process = CountingProcess(alone)
        process.check()
        assert process.failed
        process.close()
        assert not (tmp_path / "started").exists()

    def test_one_that_is_closed_before_it_is_ready_has_not_failed(self, alone):
        process = CountingProcess(alone)
        process.close()
        process.check()
        assert not process.failed


class TestProgram:
    def test_answers_until_its_input_ends(self, alone, monkeypatch):
        requests, replies = io.BytesIO(), io.BytesIO()
        for texts in (["a b", ""], ["\ud83d"], []):
            counting_program.send(requests, texts)
        requests.write(b"cut short")
        requests.seek(0)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=requests))
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=replies))
        monkeypatch.setattr(signal, "signal", lambda *args: None)
        counting_program.main(alone.file, alone.encoding)
        replies.seek(0)
        assert [counting_program.receive(replies) for _ in range(3)] == [[2, 0], None, []]
