from __future__ import annotations

import asyncio

import aiohttp
import pytest

from airflow_llm_provider.clients.prompt_request import _PromptRequest, begun
from airflow_llm_provider.testing.scripted_server import ScriptedServer


class TestBegun:
    def test_what_need_not_wait_is_done_on_the_spot(self) -> None:
        async def main() -> None:
            done = []

            async def write() -> None:
                done.append("written")

            rest = begun(write())
            assert done == ["written"]
            await rest

        asyncio.run(main())

    def test_what_has_to_wait_goes_on_as_a_task(self) -> None:
        async def main() -> None:
            done = []
            gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

            async def write() -> None:
                done.append("begun")
                done.append(await gate)
                await asyncio.sleep(0)
                done.append("ended")

            task = asyncio.create_task(begun(write()))
            assert done == ["begun"]
            gate.set_result("woken")
            await task
            assert done == ["begun", "woken", "ended"]

        asyncio.run(main())

    def test_an_error_and_a_cancellation_reach_what_waits(self) -> None:
        async def main() -> None:
            heard: list[str] = []
            gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            async def write() -> None:
                try:
                    await gate
                except BaseException as error:
                    heard.append(type(error).__name__)
                    raise

            failing = asyncio.create_task(begun(write()))
            await asyncio.sleep(0)
            gate.set_exception(OSError("gone"))
            with pytest.raises(OSError, match="gone"):
                await failing
            gate = asyncio.get_running_loop().create_future()
            cancelled = asyncio.create_task(begun(write()))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert heard == ["OSError", "CancelledError"]

        asyncio.run(main())

    def test_an_error_before_the_first_wait_is_raised_at_once(self) -> None:
        async def main() -> None:
            async def write() -> None:
                raise OSError("no room")

            with pytest.raises(OSError, match="no room"):
                begun(write())

        asyncio.run(main())


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
class TestPromptRequest:
    @pytest.mark.parametrize("size", [10, 10_000_000], ids=["in one go", "more than the socket takes"])
    def test_a_body_arrives_whole(self, size: int) -> None:
        async def main() -> None:
            body = {"model": "m", "messages": [{"role": "user", "content": "x" * size}]}
            with ScriptedServer() as server:
                async with aiohttp.ClientSession(request_class=_PromptRequest) as session:
                    for _ in range(2):
                        async with session.post(f"{server.base_url}/chat/completions", json=body) as response:
                            assert (await response.json())["choices"][0]["message"]["content"]

        asyncio.run(main())
