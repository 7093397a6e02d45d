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


@pytest.mark.parametrize("shown", ["2", None], ids=["wrong", "missing"])
def test_an_output_that_differs_fails(
    shown: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WRITES, raising=False)
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(1)\n```\n" + (f"\n```text\n{shown}\n```\n" if shown else ""))
    with pytest.raises(AssertionError):
        test_a_page_does_what_it_shows(page, capsys)


def test_every_page_is_run_and_named_by_the_index() -> None:
    others = {DOCS / "README.md", *(DOCS / "design").glob("*.md")}
    assert others | set(PAGES) == set(DOCS.glob("**/*.md"))
    named = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "README.md").read_text())}
    assert set(PAGES) <= named


@pytest.mark.parametrize("page", [DOCS / "README.md", *PAGES], ids=lambda page: page.stem)
def test_what_a_page_links_to_exists(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert links or page.name != "README.md"
    assert [link for link in links if not (page.parent / link).exists()] == []
