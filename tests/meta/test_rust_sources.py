"""Rules of the Rust sources that no compiler checks."""

from __future__ import annotations

import re
from pathlib import Path

PYCLASS = re.compile(r"^#\[pyclass\b([^\]]*)\]", re.MULTILINE)
UNSAFE = re.compile(r"\bunsafe\b")
COMMENT = re.compile(r"//.*")
BUFFER = Path("rust", "bindings", "src", "buffer.rs")


def rust_files(root: Path) -> list[Path]:
    found = [
        path for folder in ("rust/core/src", "rust/bindings/src") for path in sorted((root / folder).rglob("*.rs"))
    ]
    assert len(found) > 10
    return found


def test_every_pyclass_is_frozen(root: Path) -> None:
    options = {
        f"{path.name}:{match.start()}": match.group(1)
        for path in rust_files(root)
        for match in PYCLASS.finditer(path.read_text())
    }
    assert len(options) >= 4
    assert [place for place, text in options.items() if not re.search(r"\bfrozen\b", text)] == []


def test_unsafe_code_stands_in_the_buffer_wrapper_alone(root: Path) -> None:
    with_unsafe = {
        path.relative_to(root) for path in rust_files(root) if UNSAFE.search(COMMENT.sub("", path.read_text()))
    }
    assert with_unsafe == {BUFFER}


def test_every_unsafe_block_says_why_it_is_sound(root: Path) -> None:
    text = (root / BUFFER).read_text()
    num_blocks = len(UNSAFE.findall(COMMENT.sub("", text)))
    assert 0 < num_blocks <= text.count("SAFETY:")


def test_the_core_forbids_unsafe_code_and_the_bindings_deny_it(root: Path) -> None:
    assert "#![forbid(unsafe_code)]" in (root / "rust/core/src/lib.rs").read_text()
    assert "#![deny(unsafe_code)]" in (root / "rust/bindings/src/lib.rs").read_text()
    assert "allow(unsafe_code)" not in "".join(path.read_text() for path in rust_files(root))
