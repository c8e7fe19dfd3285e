from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class TestLinks:
    def test_lead_to_pages_and_headings_that_are_there(
        self, any_page: Any, pages: dict[str, Any], root: Path
    ) -> None:
        broken = []
        for link in any_page.links:
            if link.startswith(("https://", "http://")):
                continue
            target, _, anchor = link.partition("#")
            path = (
                posixpath.normpath(posixpath.join(posixpath.dirname(any_page.path), target))
                if target
                else any_page.path
            )
            if not (root / path).exists() or (anchor and anchor not in pages[path].anchors):
                broken.append(link)
        assert broken == []

    def test_leave_out_no_page(self, pages: dict[str, Any]) -> None:
        linked = {
            posixpath.normpath(posixpath.join("docs", link.partition("#")[0]))
            for link in pages["docs/index.md"].links
        }
        missing = [
            path for path in pages if path.startswith("docs/") and path not in linked and "/adr/" not in path
        ]
        assert missing == ["docs/index.md"]


class TestPages:
    def test_have_one_title(self, any_page: Any) -> None:
        titles = [line for line in any_page.prose.splitlines() if line.startswith("# ")]
        assert len(titles) == 1

    def test_close_every_fence(self, any_page: Any) -> None:
        assert "```" not in any_page.prose

    def test_call_blocks_by_a_language_that_is_checked(
        self, any_page: Any, languages: frozenset[str]
    ) -> None:
        assert {block.language for block in any_page.blocks} <= languages
