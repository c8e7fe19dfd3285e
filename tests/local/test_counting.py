"""What is counted, against what a real server bills: the table of docs/counting.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from airflow_llm_provider import CompletionSpec
from airflow_llm_provider.dataset.counting.tokens import ChatTokens, token_counter
from airflow_llm_provider.local.demo.model_server import MODEL_NAME, ModelServer
from airflow_llm_provider.prompt import PromptTemplate, request_body

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = {
    "`hi`": "hi",
    "English": "The customer wrote that the invoice from last month has not been paid, although the bank says so. "
    * 9,
    "German": "Der Kunde schrieb, dass die Rechnung vom letzten Monat trotz Überweisung nicht bezahlt wurde. "
    * 9,
    "Chinese": "客户写道，上个月的发票尚未支付，尽管银行确认了转账。请帮我查询一下订单状态，谢谢。" * 9,
    "Python code": "def f(x, y):\n    return {k: v for k, v in zip(x, y) if v is not None}\n" * 9,
    "JSON": '{"id": 12345, "name": "Müller", "tags": ["a","b"], "price": 12.50, "ok": true}\n' * 9,
}
SYSTEM = "You sort support tickets."
SCHEMA = {
    "title": "Ticket",
    "type": "object",
    "properties": {"label": {"type": "string"}, "urgent": {"type": "boolean"}},
    "required": ["label", "urgent"],
}
#: Tokens that the server's chat template adds, without and with a system message of ours, and what we count for that.
TEMPLATE = {None: (30, 7), SYSTEM: (14, 11)}


def spec_of(system: str | None = None, schema: dict[str, Any] | None = None) -> CompletionSpec:
    return CompletionSpec(
        model=MODEL_NAME, prompt="{{ a }}", system=system, output_schema=schema, max_output_tokens=1
    )


def counted(spec: CompletionSpec, text: str) -> int:
    counter = ChatTokens(token_counter(spec.model), spec.output_schema)
    return counter.count([PromptTemplate(spec).messages({"a": text})])[0]


def in_o200k(*texts: str | None) -> int:
    return sum(token_counter("gpt-4o").count([text for text in texts if text]))


class Server:
    """What the running server says."""

    def __init__(self, base_url: str, client: httpx.Client) -> None:
        self._base_url = base_url
        self._client = client

    def tokens(self, *texts: str | None) -> int:
        """Count in the model's own vocabulary."""
        url = f"{self._base_url.removesuffix('/v1')}/tokenize"
        answers = [self._client.post(url, json={"content": t, "add_special": False}) for t in texts if t]
        return sum(len(answer.json()["tokens"]) for answer in answers)

    def billed(self, spec: CompletionSpec, text: str) -> int:
        """Ask, and return the prompt tokens of the answer's usage."""
        body = request_body(spec, PromptTemplate(spec).messages({"a": text}))
        answer = self._client.post(f"{self._base_url}/chat/completions", json=body)
        return int(answer.json()["usage"]["prompt_tokens"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        ModelServer(tmp_path_factory.mktemp("model"), slots=1) as running,
        httpx.Client(trust_env=False, timeout=60) as client,
    ):
        yield Server(running.base_url, client)


@pytest.mark.system
class TestUsage:
    @pytest.mark.parametrize("system", TEMPLATE, ids=["prompt", "system and prompt"])
    def test_is_text_in_its_own_vocabulary_and_a_constant(self, server: Server, system: str | None) -> None:
        theirs, ours = TEMPLATE[system]
        for text in ("hi", TEXTS["German"][:90]):
            assert server.billed(spec_of(system), text) == server.tokens(text, system) + theirs
            assert counted(spec_of(system), text) == in_o200k(text, system) + ours

    def test_has_no_part_for_the_schema(self, server: Server) -> None:
        assert server.billed(spec_of(SYSTEM, SCHEMA), "hi") == server.billed(spec_of(SYSTEM), "hi")
        assert counted(spec_of(SYSTEM, SCHEMA), "hi") - counted(spec_of(SYSTEM), "hi") == 48

    def test_is_that_of_the_documents(self, server: Server) -> None:
        page = Path(__file__).parents[2] / "docs" / "counting.md"
        rows = re.findall(
            r"^\| ([^|]+?)(?:, (\d+) characters)? \| (yes|no) \| (\d+) \| (\d+) \| ([\d.]+) \|$",
            page.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
        assert {row[0] for row in rows} == set(TEXTS)
        for name, characters, has_system, ours, theirs, ratio in rows:
            text, system = TEXTS[name], SYSTEM if has_system == "yes" else None
            assert not characters or int(characters) == len(text)
            assert int(ours) == counted(spec_of(system), text)
            assert int(theirs) == server.tokens(text, system) + TEMPLATE[system][0]
            assert ratio == f"{int(theirs) / int(ours):.1f}"
