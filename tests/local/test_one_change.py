"""Changes one at a time."""

from __future__ import annotations

import asyncio

import pytest

from airflow_llm_provider.local.airflow.one_change import OneChangeAtATime


class App:
    """Notes who comes in and goes out; each request waits until all others had their chance."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, scope, receive, send) -> None:
        self.seen.append(f"in {scope['name']}")
        for _ in range(10):
            await asyncio.sleep(0)
        self.seen.append(f"out {scope['name']}")
        if scope["name"] == "broken":
            raise RuntimeError("broken")


def serve(*requests: tuple[str, str, str]) -> list[str]:
    """Serve requests of (name, method, path) together and return what the app saw."""
    app = App()

    async def everything() -> None:
        middleware = OneChangeAtATime(app)
        scopes = [
            {"type": "http", "name": name, "method": method, "path": path} for name, method, path in requests
        ]
        await asyncio.gather(
            *(middleware(scope, None, None) for scope in scopes),  # type: ignore[arg-type]
            return_exceptions=True,
        )

    asyncio.run(everything())
    return app.seen


class TestOneChangeAtATime:
    def test_a_change_waits_for_the_one_before(self) -> None:
        assert serve(("a", "POST", "/api/v2/pools"), ("b", "PATCH", "/execution/task-instances/1/run")) == [
            "in a",
            "out a",
            "in b",
            "out b",
        ]

    @pytest.mark.parametrize(
        "other", [("b", "GET", "/api/v2/dags"), ("b", "POST", "/api/v2/connections/test")]
    )
    def test_what_changes_nothing_does_not_wait(self, other: tuple[str, str, str]) -> None:
        assert serve(("a", "POST", "/api/v2/pools"), other)[:2] == ["in a", "in b"]

    def test_a_broken_change_lets_the_next_one_in(self) -> None:
        assert serve(("broken", "POST", "/a"), ("b", "POST", "/b"))[-1] == "out b"

    def test_start_and_end_of_the_server_pass_through(self) -> None:
        app = App()
        asyncio.run(OneChangeAtATime(app)({"type": "lifespan", "name": "lifespan"}, None, None))  # type: ignore[arg-type]
        assert app.seen == ["in lifespan", "out lifespan"]
