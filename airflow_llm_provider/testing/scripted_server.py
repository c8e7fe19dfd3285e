"""A model server for tests and benchmarks: answers at once and the same every time, fails as scripted, forgets nothing.

In a thread of the test::

    with ScriptedServer(Rule(contains="row 3", status=503, times=2)) as server:
        run_dataset(spec, source, destination, base_url=server.base_url, ...)
        assert server.stats()["answered"] == 100

In its own process, for benchmarks and for tests that kill theirs: ``ScriptedServer(own_process=True)``, or from a
shell ``python -m airflow_llm_provider.testing.scripted_server --port 0``, which prints ``{"base_url": …, "port": …}``.
Either is spoken to by HTTP: ``GET /_requests``, ``GET /_stats``, ``POST /_script``, ``POST /_reset``.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import subprocess
import sys
import threading
import urllib.request
from typing import TYPE_CHECKING, Any, Self

from airflow_llm_provider.testing.server.answers import TEXT_ANSWERS
from airflow_llm_provider.testing.server.endpoint import EndpointOptions, ScriptedEndpoint
from airflow_llm_provider.testing.server.http import Fault, HttpConnection
from airflow_llm_provider.testing.server.limits import AccountLimits
from airflow_llm_provider.testing.server.record import RecordedRequest, assert_answered_once
from airflow_llm_provider.testing.server.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AccountLimits", "EndpointOptions", "Fault", "RecordedRequest", "Rule", "ScriptedServer"]

_HOST = "127.0.0.1"
_START_SECONDS = 30.0


class ScriptedServer:
    """A running model server; use it as a context manager.

    :param rules: the script.
    :param options: behaviour where no rule speaks.
    :param own_process: run it in a process of its own rather than in a thread; it ends with the test's process.
    :param port: port on the loopback interface; 0: any free one.
    """

    def __init__(
        self, *rules: Rule, options: EndpointOptions | None = None, own_process: bool = False, port: int = 0
    ) -> None:
        self._rules = list(rules)
        self._options = options or EndpointOptions()
        self._host = _OwnProcess(self._options, port) if own_process else _OwnThread(self._options, port)
        self.port = 0

    def __enter__(self) -> Self:
        self.port = self._host.start()
        if self._rules:
            self.script(*self._rules)
        return self

    def __exit__(self, *_: object) -> None:
        self._host.stop()

    @property
    def base_url(self) -> str:
        """URL before ``/chat/completions``."""
        return f"http://{_HOST}:{self.port}/v1"

    @property
    def requests(self) -> list[RecordedRequest]:
        """Every request since the last script or reset, in order of arrival."""
        found: list[RecordedRequest] = []
        while page := self._ask(f"/_requests?from={len(found)}"):
            found += [RecordedRequest.from_json(item) for item in page]
        return found

    @property
    def prompts(self) -> list[str]:
        """Text of the last message of every request, in order of arrival."""
        return [request.prompt for request in self.requests]

    def assert_answered_once(self, *texts: str) -> None:
        """Fail unless these rows have got an answer, each exactly one, and no other row has.

        :param texts: for each row a text that stands in its prompt and in no other row's.
        :raises AssertionError: naming the rows that are missing, were paid for twice or were not expected.
        """
        assert_answered_once(self.requests, texts)

    def stats(self) -> dict[str, Any]:
        """Return the counts: ``requests``, ``distinct``, ``answered``, ``by_status``, ``max_in_flight`` and more."""
        return dict(self._ask("/_stats"))

    def script(self, *rules: Rule) -> None:
        """Start another script; requests and limits are forgotten."""
        self._ask("/_script", [rule.to_json() for rule in rules])

    def reset(self) -> None:
        """Forget requests and limits, and start the script anew."""
        self._ask("/_reset", {})

    def _ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{_HOST}:{self.port}{path}", data=data)
        # No proxy, whatever the environment says: the server is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_START_SECONDS) as response:
            return json.load(response)


class _OwnThread:
    """The server on a loop of its own in a daemon thread."""

    def __init__(self, options: EndpointOptions, port: int) -> None:
        self._endpoint = ScriptedEndpoint(options)
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="scripted-server", daemon=True)
        self._started = threading.Event()

    def start(self) -> int:
        self._thread.start()
        if not self._started.wait(_START_SECONDS):
            raise RuntimeError(f"the scripted server did not start within {_START_SECONDS:g} s")
        return self._port

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)

    def _run(self) -> None:
        connections: list[HttpConnection] = []

        def connection() -> HttpConnection:
            connections.append(HttpConnection(self._endpoint))
            return connections[-1]

        server = self._loop.run_until_complete(self._loop.create_server(connection, _HOST, self._port))
        self._port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        for each in connections:
            each.abort()
        # One more turn, in which transports let go of their sockets.
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(server.wait_closed())
        self._loop.close()


class _OwnProcess:
    """The server in a child process, which ends when its standard input does: with us, however we die."""

    def __init__(self, options: EndpointOptions, port: int) -> None:
        self._arguments = [sys.executable, "-m", __spec__.name, "--port", str(port), "--until-stdin-ends"]
        self._arguments += ["--options", json.dumps(dataclasses.asdict(options))]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        self._process = subprocess.Popen(self._arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 -- ourselves
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the scripted server did not start (exit code {self._process.wait()})")
        return int(json.loads(line)["port"])

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def _options(arguments: argparse.Namespace) -> EndpointOptions:
    if arguments.options is None:
        return EndpointOptions(answer=arguments.answer, latency=arguments.latency, jitter=arguments.jitter)
    values = json.loads(arguments.options)
    limits = values.get("limits")
    return EndpointOptions(
        **{**values, "limits": limits and AccountLimits(**limits), "models": tuple(values["models"])}
    )


async def _serve(arguments: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    endpoint = ScriptedEndpoint(_options(arguments))
    if arguments.script is not None:
        endpoint.reset([Rule.from_json(rule) for rule in json.loads(arguments.script)])
    server = await loop.create_server(lambda: HttpConnection(endpoint), _HOST, arguments.port, backlog=1024)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"base_url": f"http://{_HOST}:{port}/v1", "port": port}), flush=True)  # noqa: T201 -- the interface
    if arguments.until_stdin_ends:
        await loop.run_in_executor(None, sys.stdin.buffer.read)
    else:
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="scripted_server", description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="port on the loopback interface; 0: any free one")
    parser.add_argument(
        "--answer", choices=sorted(TEXT_ANSWERS), default="echo", help="how plain text is answered"
    )
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before an answer")
    parser.add_argument("--jitter", type=float, default=0.0, help="random seconds on top, at most")
    parser.add_argument("--script", help="JSON list of rules")
    parser.add_argument("--options", help="JSON of all options, in place of the single ones")
    parser.add_argument("--until-stdin-ends", action="store_true", help="stop when standard input ends")
    try:
        asyncio.run(_serve(parser.parse_args(argv)))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
