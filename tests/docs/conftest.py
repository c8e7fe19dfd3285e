"""README.md and docs/ as data: pages, their fenced blocks, tables, headings and links."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$", re.MULTILINE)
_LINK = re.compile(r"(?<!\\)\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
_CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
#: What a fence may call itself. ``text`` is for what nobody runs: pictures, logs, other tools' commands.
LANGUAGES = frozenset({"bash", "ini", "jinja", "json", "mermaid", "python", "sql", "text", "yaml"})


@dataclass(frozen=True)
class Block:
    """One fenced block.

    :param page: page it stands on, relative to the repository.
    :param line: line of its fence.
    :param language: first word after the fence.
    :param role: further words after the fence, such as ``connection`` in "```json connection"; of Python, the file that
        it is a copy of.
    """

    page: str
    line: int
    language: str
    role: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_dag(self) -> bool:
        return (
            self.language == "python" and re.search(r"\bDAG\(|^@dag\b", self.code, re.MULTILINE) is not None
        )

    @property
    def is_test(self) -> bool:
        return (
            self.language == "python"
            and not self.role
            and re.search(r"^(?:    )?def test_", self.code, re.MULTILINE) is not None
        )


@dataclass(frozen=True)
class Page:
    """One Markdown file.

    :param path: relative to the repository.
    """

    path: str
    text: str

    def __str__(self) -> str:
        return self.path

    @cached_property
    def blocks(self) -> list[Block]:
        found = []
        for match in _FENCE.finditer(self.text):
            indent = len(match["indent"])
            code = "".join(line[indent:] or "\n" for line in match["code"].splitlines(keepends=True))
            language, _, role = match["info"].strip().partition(" ")
            line = self.text.count("\n", 0, match.start()) + 1
            found.append(Block(self.path, line, language, role.strip(), code))
        return found

    @cached_property
    def prose(self) -> str:
        """The text without fenced blocks."""
        return _FENCE.sub("", self.text)

    @cached_property
    def headings(self) -> list[str]:
        return [match[2] for match in _HEADING.finditer(self.prose)]

    @cached_property
    def anchors(self) -> set[str]:
        """What GitHub calls the headings."""
        seen: dict[str, int] = {}
        anchors = set()
        for heading in self.headings:
            slug = _slug(heading)
            repeat = seen.get(slug, 0)
            seen[slug] = repeat + 1
            anchors.add(f"{slug}-{repeat}" if repeat else slug)
        return anchors

    @cached_property
    def links(self) -> list[str]:
        return _LINK.findall(_CODE_SPAN.sub("code", self.prose))

    def section(self, heading: str) -> str:
        """The text below a heading, up to the next of its level or a higher one."""
        found = re.search(
            rf"^(#{{1,6}}) +{re.escape(heading)} *$\n(.*?)(?=^#{{1,6}} |\Z)",
            self.prose,
            re.MULTILINE | re.DOTALL,
        )
        assert found, f"{self.path} has no heading {heading!r}"
        return found[2]

    def table(self, heading: str) -> list[list[str]]:
        """The cells of the first table below a heading, without its head."""
        lines = self.section(heading).splitlines()
        start = next((n for n, line in enumerate(lines) if line.startswith("|")), None)
        assert start is not None, f"{self.path} has no table below {heading!r}"
        rows = []
        for line in lines[start + 2 :]:
            if not line.startswith("|"):
                break
            rows.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        return rows


def _slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    kept = "".join(c for c in text if c in "-_ " or unicodedata.category(c)[0] in "LNM")
    return kept.replace(" ", "-")


@cache
def all_pages() -> tuple[Page, ...]:
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return tuple(Page(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths)


def _scripts(page: Page) -> list[Block]:
    return [b for b in page.blocks if b.language == "python" and not (b.role or b.is_dag or b.is_test)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    blocks = [block for page in all_pages() for block in page.blocks]
    kinds = {
        "any_page": all_pages(),
        "page_with_scripts": [page for page in all_pages() if _scripts(page)],
        "dag_block": [b for b in blocks if b.is_dag and not b.is_test],
        "copied_block": [b for b in blocks if b.language == "python" and b.role],
        "json_block": [b for b in blocks if b.language == "json"],
        "connection_block": [b for b in blocks if (b.language, b.role) == ("json", "connection")],
        "uri_block": [b for b in blocks if (b.language, b.role) == ("text", "connection-uri")],
        "ini_block": [b for b in blocks if b.language == "ini"],
        "jinja_block": [b for b in blocks if b.language == "jinja"],
        "pools_block": [b for b in blocks if (b.language, b.role) == ("json", "pools")],
        "yaml_block": [b for b in blocks if b.language == "yaml"],
        "bash_block": [b for b in blocks if b.language == "bash"],
    }
    for name, values in kinds.items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values, ids=str)


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def pages() -> dict[str, Page]:
    """Every page by its path."""
    return {page.path: page for page in all_pages()}


@pytest.fixture(scope="session")
def languages() -> frozenset[str]:
    return LANGUAGES


@pytest.fixture
def test_blocks() -> list[Block]:
    """Every block that is a test module."""
    return [block for page in all_pages() for block in page.blocks if block.is_test]


@pytest.fixture
def scripts(page_with_scripts: Page) -> list[Block]:
    """The page's runnable Python, in order; one page is one session."""
    return _scripts(page_with_scripts)
