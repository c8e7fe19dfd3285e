"""Troubleshooting quotes messages as the code writes them."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import airflow_llm_provider


def template(node: ast.AST) -> str | None:
    """Return a string with ``…`` for what differs; ``None``: the node is no string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(template(value) or "…" for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None and right is None else (left or "…") + (right or "…")
    return None


@cache
def messages() -> frozenset[str]:
    found = set()
    for path in Path(airflow_llm_provider.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = template(node)
            if text and " " in text:
                found.add(re.sub(r"%(?:\.\d)?[sdf]", "…", text))
    return frozenset(found)


class TestMessages:
    def test_are_those_of_the_code(self, pages: dict[str, Any]) -> None:
        page = pages["docs/troubleshooting.md"]
        quoted = re.findall(r"^\| `(.+?)` \|", page.prose, re.MULTILINE)
        wanted = {text: re.compile(".*".join(map(re.escape, text.split("…"))), re.DOTALL) for text in quoted}
        unknown = [text for text, pattern in wanted.items() if not any(map(pattern.search, messages()))]
        assert len(quoted) > 50
        assert unknown == []

    def test_of_airflow_are_those_of_airflow(self, pages: dict[str, Any]) -> None:
        from airflow.sdk.execution_time import supervisor

        told = re.findall(r"`(Process terminated[^`]+)`", pages["docs/troubleshooting.md"].text)
        source = inspect.getsource(supervisor)
        assert told
        assert all(sentence in source for text in told for sentence in re.findall(r"[^.]+\.", text))
