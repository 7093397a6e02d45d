"""The guides and concepts are run: the Python blocks of a page in order, and what is printed below one is compared."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for folder in ("guides", "concepts") for path in (DOCS / folder).glob("*.md"))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)\)")
WRITES = "LOOSELEAF_WRITE_DOCS"
"""Set it to write what the snippets print into the pages."""

pytestmark = pytest.mark.usefixtures("one_thread")


class Snippet(NamedTuple):
    code: str
    line: int
    output: str | None
    span: tuple[int, int]


def snippets(page: Path) -> list[Snippet]:
    """Python blocks, each with the `text` block that follows it."""
    text = page.read_text()
    matches = list(FENCE.finditer(text))
    found = []
    for place, match in enumerate(matches):
        if match[1] == "python":
            after = matches[place + 1] if place + 1 < len(matches) else None
            has_output = after is not None and after[1] == "text" and not text[match.end() : after.start()].strip()
            output = after[2] if after is not None and has_output else None
            span = after.span(2) if after is not None and has_output else (0, 0)
            found.append(Snippet(match[2], text.count("\n", 0, match.start(2)), output, span))
        else:
            assert match[1] == "text", f"{page}: nothing runs {match[1]}"
    return found


def test_the_pages_were_found() -> None:
    assert {page.stem for page in PAGES} == {
        *("adopt-the-cache", "run-a-model", "size-your-cache"),
        *("blocks", "copy-on-write", "prefix-cache", "preemption-and-swap", "windows"),
    }
    assert all(any(snippet.output for snippet in snippets(page)) for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_shows(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": page.stem}
    text, shift = page.read_text(), 0
    for snippet in snippets(page):
        code = compile("\n" * snippet.line + snippet.code, str(page), "exec")
        exec(code, names)  # noqa: S102 - our own file
        printed = capsys.readouterr().out
        if WRITES in os.environ and snippet.output is not None:
            begin, end = (place + shift for place in snippet.span)
            text, shift = text[:begin] + printed + text[end:], shift + len(printed) - (end - begin)
        else:
            assert printed == (snippet.output or "")
    if WRITES in os.environ:
        page.write_text(text)


@pytest.mark.parametrize("page", [DOCS / "README.md", *PAGES], ids=lambda page: page.stem)
def test_what_a_page_links_to_exists(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert links or page.name != "README.md"
    assert [link for link in links if not (page.parent / link).exists()] == []
