"""A script that is asked to end takes in what is in flight first: it is paid for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_llm_provider.jobs import run_dataset
from airflow_llm_provider.jobs.signals import ended_by_signals
from airflow_llm_provider.testing.scripted_client import Delayed
from airflow_llm_provider.testing.scripted_server import Rule, ScriptedServer
from tests.jobs.conftest import asked

SCRIPT = Path(__file__).with_name("dataset_process.py")
TEXTS = [f"row {n:02d}" for n in range(12)]
IN_FLIGHT = 3
ANSWERED = 4


class Script:
    """A process whose first requests are answered, and whose next ones are out until :meth:`heal`."""

    def __init__(self, job, server, *, handler=False, in_a_loop=False):
        self.job = job
        self.server = server
        job.write(TEXTS)
        server.script(Rule(skip=ANSWERED, held=True))
        told = {
            "spec": {"model": job.spec.model, "prompt": job.spec.prompt, "temperature": job.spec.temperature},
            "source": job.source,
            "destination": job.destination,
            "base_url": server.base_url,
            "concurrency": IN_FLIGHT,
            "handler": handler,
            "in_a_loop": in_a_loop,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps(told)], stderr=subprocess.PIPE, text=True
        )
        wanted = {"answered": ANSWERED, "in_flight": IN_FLIGHT}
        while {name: server.stats()[name] for name in wanted} != wanted:
            assert self.process.poll() is None

    def ask_to_end(self, number):
        self.process.send_signal(number)
        self.wait_for(f"stopping ({number.name})")

    def wait_for(self, words):
        """Read what the process logs until it says so, or ends."""
        while (line := self.process.stderr.readline()) and words not in line:
            pass

    def heal(self):
        """Let the server answer, and return what it was asked until now."""
        seen = self.server.prompts
        self.server.script()
        return seen

    def end(self):
        """Wait for the end, and return how the process ended."""
        self.process.communicate(timeout=60)
        return self.process.returncode

    def run_again(self):
        """Do in this process what is left, and return what the server was asked meanwhile."""
        self.server.script()
        run_dataset(self.job.spec, self.job.source, self.job.destination, base_url=self.server.base_url)
        return self.server.prompts


@pytest.fixture
def script(job):
    begun = []
    with ScriptedServer() as server:

        def begin(**options):
            begun.append(Script(job, server, **options))
            return begun[-1]

        yield begin
        for each in begun:
            each.process.kill()
            each.process.communicate()


class TestScript:
    @pytest.mark.parametrize("in_a_loop", [False, True])
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_asked_to_end_pays_for_nothing_twice(self, script, number, in_a_loop):
        asked = script(in_a_loop=in_a_loop)
        asked.ask_to_end(number)
        before = asked.heal()
        assert asked.end() == -number
        assert len(before) == ANSWERED + IN_FLIGHT
        assert sorted(before + asked.run_again()) == TEXTS

    @pytest.mark.parametrize("in_a_loop", [False, True])
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_asked_twice_ends_at_once(self, script, number, in_a_loop):
        asked = script(in_a_loop=in_a_loop)
        asked.ask_to_end(number)
        asked.process.send_signal(number)
        assert asked.end() == -number
        assert asked.server.stats()["answered"] == ANSWERED

    def test_with_a_handler_of_its_own_goes_on(self, script):
        asked = script(handler=True)
        asked.process.send_signal(signal.SIGTERM)
        asked.wait_for("heard")
        before = asked.heal()
        assert asked.end() == 0
        assert sorted(before + asked.server.prompts) == TEXTS


@pytest.fixture
def as_in_a_script():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("as_in_a_script")
class TestGrace:
    """Longer than most answers take, and shorter than Docker waits."""

    @pytest.mark.parametrize(("seconds", "again"), [(7.9, ["late"]), (8.1, ["in flight", "late"])])
    def test_what_comes_back_in_eight_seconds_is_not_asked_again(self, job, seconds, again):
        def answer(call):
            if asked(call) == "in flight":
                os.kill(os.getpid(), signal.SIGINT)
            return Delayed(answer="yes", seconds=seconds)

        def run():
            run_dataset(
                job.spec, job.source, job.destination, client=job.client, clock=job.clock, concurrency=1
            )

        job.write(["in flight", "late"])
        job.answer = answer
        with pytest.raises(KeyboardInterrupt):
            run()
        assert job.calls == ["in flight"]
        job.calls.clear()
        job.answer = None
        run()
        assert job.calls == again


@pytest.mark.usefixtures("as_in_a_script")
class TestHandlers:
    def test_are_given_back(self):
        with ended_by_signals(lambda _: None):
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) != signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler

    def test_of_others_stay(self):
        def own(*_):
            raise AssertionError

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, own)
        with ended_by_signals(lambda _: None):
            assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGINT) is own

    def test_that_others_set_meanwhile_stay(self):
        def own(*_):
            raise AssertionError

        with ended_by_signals(lambda _: None):
            signal.signal(signal.SIGTERM, own)
        assert signal.getsignal(signal.SIGTERM) is own
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_cannot_be_set_by_other_threads(self):
        entered = []

        def work():
            with ended_by_signals(lambda _: None):
                entered.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert entered == [signal.SIG_DFL]

    @pytest.mark.parametrize(("times", "done"), [(1, [["SIGINT"]]), (2, [])])
    def test_an_interrupt_is_raised_in_the_end_and_a_second_one_at_once(self, times, done):
        heard, reached = [], []

        def interrupted():
            with ended_by_signals(heard.append):
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
                reached.append(heard)

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert heard == ["SIGINT"] * times
        assert reached == done
