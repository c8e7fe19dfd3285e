from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llm_provider.testing.scripted_server import (
    AccountLimits,
    EndpointOptions,
    Fault,
    Rule,
    ScriptedServer,
)
from airflow_llm_provider.testing.server.answers import instance
from airflow_llm_provider.testing.server.endpoint import ScriptedEndpoint
from airflow_llm_provider.testing.server.http import HttpRequest
from airflow_llm_provider.testing.server.limits import SlidingWindow, go_duration


def body(text="hi", **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 5, **more}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Endpoint:
    """An endpoint without sockets, on a clock that stands still."""

    def __init__(self, *rules, **options):
        self.clock = Clock()
        self.endpoint = ScriptedEndpoint(EndpointOptions(**options), monotonic=self.clock, epoch=self.clock)
        self.endpoint.reset(list(rules))

    def raw(self, method, path, payload=b"", **headers):
        path, _, query = path.partition("?")
        return self.endpoint(
            HttpRequest(method=method, path=path, query=query, headers=headers, body=payload)
        )

    def post(self, payload, **headers):
        response = self.raw("POST", "/v1/chat/completions", orjson.dumps(payload), **headers)
        if response.fault is None:
            response.on_end(True)
        return response

    def content(self, payload):
        return orjson.loads(self.post(payload).body)["choices"][0]["message"]["content"]


class TestDefaultAnswers:
    @pytest.mark.parametrize(("mode", "answer"), [("echo", "echo: hi"), ("upper", "HI"), ("ok", "ok")])
    def test_text_is_derived_from_the_last_message(self, mode, answer):
        assert Endpoint(answer=mode).content(body()) == answer

    def test_are_the_same_every_time(self):
        assert Endpoint(answer="hash").content(body()) == Endpoint(answer="hash").content(body())
        assert Endpoint(answer="hash").content(body()) != Endpoint(answer="hash").content(body("ho"))

    def test_usage_counts_words(self):
        response = orjson.loads(Endpoint().post(body("one two three")).body)
        assert response["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}

    @given(
        st.recursive(
            st.sampled_from(
                [
                    {"type": "string", "maxLength": 3},
                    {"type": "string", "minLength": 30},
                    {"type": "string", "format": "date"},
                    {"type": "integer", "minimum": 5, "maximum": 6},
                    {"type": "integer", "exclusiveMinimum": 0, "multipleOf": 3},
                    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                    {"type": "boolean"},
                    {"type": ["null", "string"]},
                    {"enum": ["a", "b"]},
                    {"const": 3},
                    {"$ref": "#/$defs/tree"},
                ]
            ),
            lambda leaf: (
                st.fixed_dictionaries(
                    {"type": st.just("array"), "items": leaf, "minItems": st.integers(0, 3)}
                )
                | st.fixed_dictionaries({"anyOf": st.lists(leaf, min_size=1, max_size=2)})
                | st.fixed_dictionaries(
                    {
                        "type": st.just("object"),
                        "properties": st.dictionaries(st.text(max_size=3), leaf, max_size=3),
                    }
                )
            ),
            max_leaves=6,
        ),
        st.text(),
    )
    def test_instances_are_valid(self, inner, seed):
        tree = {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
        }
        schema = {
            "type": "object",
            "properties": {"a": inner},
            "required": ["a"],
            "$defs": {"tree": {**tree, "required": ["next"]}},
        }
        jsonschema_rs.validate(schema, instance(schema, seed=seed))

    def test_a_schema_in_the_request_is_answered_by_an_instance(self):
        schema = {"type": "object", "properties": {"label": {"enum": ["a", "b"]}}, "required": ["label"]}
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        assert json.loads(Endpoint().content(body(response_format=wanted)))["label"] in ("a", "b")


class TestRules:
    def test_the_first_that_matches_decides_and_times_run_out(self):
        endpoint = Endpoint(Rule(contains="x", status=503, times=2), Rule(contains="x", answer="then"))
        assert [endpoint.post(body("x")).status for _ in range(3)] == [503, 503, 200]
        assert endpoint.content(body("x")) == "then"
        assert endpoint.content(body("y")) == "echo: y"

    def test_skip_lets_the_first_pass(self):
        endpoint = Endpoint(Rule(skip=2, times=1, status=500))
        assert [endpoint.post(body()).status for _ in range(4)] == [200, 200, 500, 200]

    def test_a_window_of_time(self):
        endpoint = Endpoint(Rule(after=5, until=10, status=503))
        statuses = []
        for endpoint.clock.now in (0, 4.9, 5, 9.9, 10):
            statuses.append(endpoint.post(body()).status)
        assert statuses == [200, 200, 503, 503, 200]

    def test_conditions(self):
        endpoint = Endpoint(
            Rule(has="max_tokens", status=400, times=1),
            Rule(model="n", status=404),
            Rule(key="k", status=401),
        )
        assert endpoint.post(body()).status == 400
        assert endpoint.post(body(model="n")).status == 404
        assert endpoint.post(body(), authorization="Bearer k").status == 401
        assert endpoint.post(body()).status == 200

    def test_bodies(self):
        endpoint = Endpoint(
            Rule(contains="html", text="<html>"),
            Rule(contains="json", body={"error": {}}),
            Rule(contains="cut", cut=10),
        )
        assert endpoint.post(body("html")).body == b"<html>"
        assert endpoint.post(body("html")).content_type == "text/html"
        assert endpoint.post(body("json")).body == b'{"error":{}}'
        assert len(endpoint.post(body("cut")).body) == 10

    def test_refusal_null_content_and_usage(self):
        endpoint = Endpoint(Rule(refusal="no", finish_reason="length", no_usage=True))
        completion = orjson.loads(endpoint.post(body()).body)
        assert completion["choices"][0]["message"] == {"role": "assistant", "content": None, "refusal": "no"}
        assert completion["choices"][0]["finish_reason"] == "length"
        assert "usage" not in completion

    def test_unknown_keys_are_refused(self):
        response = Endpoint().raw("POST", "/_script", b'[{"statsu": 500}]')
        assert response.status == 400
        assert b"statsu" in response.body

    def test_read_back_what_was_written(self):
        rule = Rule(contains="x", times=3, status=429, headers={"retry-after": "1"}, fault=Fault.HALF)
        assert Rule.from_json(json.loads(json.dumps(rule.to_json()))) == rule


class TestLimits:
    def test_the_window_is_kept_and_refusals_say_when(self):
        endpoint = Endpoint(limits=AccountLimits(requests=2, window=60))
        assert [endpoint.post(body()).status for _ in range(3)] == [200, 200, 429]
        refusal = endpoint.post(body())
        assert refusal.headers["retry-after"] == "60.000"
        assert refusal.headers["x-ratelimit-remaining-requests"] == "0"
        assert refusal.headers["x-ratelimit-reset-requests"] == "1m0s"
        endpoint.clock.now = 60.0
        assert endpoint.post(body()).status == 200

    def test_tokens_reserve_the_output_cap(self):
        endpoint = Endpoint(limits=AccountLimits(tokens=12))
        assert [endpoint.post(body("one")).status for _ in range(3)] == [200, 200, 429]
        assert orjson.loads(endpoint.raw("GET", "/_stats").body)["peak_tokens"] == 12

    def test_each_key_has_its_own(self):
        endpoint = Endpoint(limits=AccountLimits(requests=1))
        assert endpoint.post(body(), authorization="Bearer a").status == 200
        assert endpoint.post(body(), authorization="Bearer b").status == 200
        assert endpoint.post(body(), authorization="Bearer a").status == 429

    @given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 40))), st.integers(1, 5), st.integers(40, 90))
    def test_no_window_ever_exceeds_them(self, arrivals, requests, tokens):
        window = SlidingWindow(AccountLimits(requests=requests, tokens=tokens, window=10))
        now, passed = 0.0, []
        for gap, cost in arrivals:
            now += gap
            wait = window.admit(cost, now=now)
            if wait is None:
                passed.append((now, cost))
            else:
                assert wait > 0
        for start, _ in passed:
            inside = [cost for at, cost in passed if start <= at < start + 10]
            assert len(inside) <= requests
            assert sum(inside) <= tokens

    @pytest.mark.parametrize(
        ("seconds", "text"), [(0, "0ms"), (0.017, "17ms"), (1.2, "1.2s"), (90, "1m30s"), (360, "6m0s")]
    )
    def test_durations_are_written_as_openai_does(self, seconds, text):
        assert go_duration(seconds) == text


class TestKeysAndModels:
    def test_a_wrong_key_is_refused(self):
        endpoint = Endpoint(api_key="right")
        assert endpoint.post(body(), authorization="Bearer wrong").status == 401
        assert endpoint.post(body()).status == 401
        assert endpoint.post(body(), authorization="Bearer right").status == 200
        assert endpoint.raw("GET", "/v1/models").status == 401

    def test_an_unknown_model_is_refused(self):
        endpoint = Endpoint(models=("a",))
        assert endpoint.post(body(model="b")).status == 404
        assert orjson.loads(endpoint.raw("GET", "/v1/models").body)["data"][0]["id"] == "a"

    @pytest.mark.parametrize("payload", [b"{", b"[]"])
    def test_a_body_that_is_none(self, payload):
        assert Endpoint().raw("POST", "/v1/chat/completions", payload).status == 400

    def test_unknown_paths(self):
        assert Endpoint().raw("GET", "/v1/nope").status == 404
        assert Endpoint().raw("GET", "/_nope").status == 404


@pytest.fixture(scope="module", params=[False, True], ids=["own thread", "own process"])
def server(request):
    with ScriptedServer(own_process=request.param) as running:
        yield running


@contextlib.contextmanager
def connected(server):
    """Open a connection."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        yield connection


def send(connection, payload, **headers):
    connection.request("POST", "/v1/chat/completions", json.dumps(payload), headers)


@contextlib.contextmanager
def post(server, payload, **headers):
    """Send one request on a connection of its own."""
    with connected(server) as connection:
        send(connection, payload, **headers)
        yield connection.getresponse()


def wait_for(server, *, in_flight):
    """Wait until so many requests are not answered."""
    while server.stats()["in_flight"] != in_flight:
        pass


def give_up(server, payload):
    """Send one request, and hang up once the server has it."""
    with connected(server) as connection:
        send(connection, payload)
        wait_for(server, in_flight=1)
    wait_for(server, in_flight=0)


class TestScriptedServer:
    def test_serves_many_requests_on_one_connection_and_records_them(self, server):
        server.script()
        with connected(server) as connection:
            for n in range(3):
                send(connection, body(f"row {n}"), Authorization="Bearer s3cret")
                answer = json.load(connection.getresponse())
                assert answer["choices"][0]["message"]["content"] == f"echo: row {n}"
        assert [request.prompt for request in server.requests] == ["row 0", "row 1", "row 2"]
        assert all(
            request.answered and request.authorized and request.status == 200 for request in server.requests
        )
        assert "s3cret" not in repr(server.requests)
        stats = server.stats()
        assert (stats["requests"], stats["distinct"], stats["answered"], stats["in_flight"]) == (3, 3, 3, 0)

    def test_big_bodies_arrive_whole(self, server):
        server.script(Rule(answer="ok"))
        with post(server, body("x" * 3_000_000)) as response:
            assert json.load(response)["choices"][0]["message"]["content"] == "ok"

    def test_drops_halves_and_hangs(self, server):
        server.script(
            Rule(contains="drop", fault="drop"),
            Rule(contains="half", fault="half"),
            Rule(contains="hang", fault="hang"),
        )
        with pytest.raises(ConnectionResetError), post(server, body("drop")):
            pass
        with pytest.raises(http.client.IncompleteRead), post(server, body("half")) as response:
            response.read()
        give_up(server, body("hang"))
        assert [(request.prompt, request.answered, request.status) for request in server.requests] == [
            ("drop", False, None),
            ("half", False, None),
            ("hang", False, None),
        ]

    @pytest.mark.parametrize("status", [200, 503])
    def test_holds_until_the_next_script(self, server, status):
        server.script(Rule(held=True, status=status))

        def ask():
            with post(server, body()) as response:
                return response.status

        give_up(server, body("gone"))
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(ask) for _ in range(2)]
            wait_for(server, in_flight=2)
            assert not any(each.done() for each in asked)
            assert server.stats()["answered"] == 0
            server.script()
            assert [each.result(timeout=60) for each in asked] == [status] * 2
        with post(server, body()) as response:
            assert response.status == 200

    def test_reset_forgets_and_starts_the_script_anew(self, server):
        server.script(Rule(status=500, times=1))
        statuses = []
        for _ in range(2):
            for _ in range(2):
                with post(server, body()) as response:
                    statuses.append(response.status)
            server.reset()
        assert statuses == [500, 200, 500, 200]
        assert server.requests == []


class TestOwnProcess:
    def test_takes_options_along(self):
        options = EndpointOptions(
            answer="ok", models=("m",), limits=AccountLimits(requests=1), full_records=False
        )
        with ScriptedServer(own_process=True, options=options) as server:
            statuses = []
            for _ in range(2):
                with post(server, body()) as response:
                    statuses.append(response.status)
            assert statuses == [200, 429]
            assert server.requests[0].body is None

    def test_ends_when_its_standard_input_does(self):
        command = [sys.executable, "-m", "airflow_llm_provider.testing.scripted_server", "--until-stdin-ends"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert json.loads(process.stdout.readline())["port"]
            process.stdin.close()
            assert process.wait(30) == 0


class TestFixture:
    def test_gives_a_running_server(self, scripted_server):
        assert scripted_server.stats()["requests"] == 0
