"""Rules of the repository: what its files may hold, and that its commands are explained."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LONGEST_FILE = 500
SOURCES = {".rs", ".py", ".pyi", ".c", ".h", ".cpp", ".cu", ".cuh", ".toml"}
# "ada" is the user of our examples.
FOREIGN = {
    "a path of one machine": re.compile(r"(?<![\w.$~}/-])/(?:work|root|Users|home(?!/ada\b))/\w"),
    "the host of a package registry": re.compile(r"pypi\.org|pythonhosted\.org|crates\.io"),
}
# Cargo names its registry there; the checksums need it.
MAY_NAME_A_REGISTRY = {"Cargo.lock"}


def test_no_source_file_is_too_long(files: list[Path]) -> None:
    lengths = {path: path.read_text().count("\n") for path in files if path.suffix in SOURCES}
    assert len(lengths) > 50
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_file_names_a_machine_or_a_registry(files: list[Path]) -> None:
    found = [
        f"{path}: {what}"
        for path in files
        if path.name not in MAY_NAME_A_REGISTRY
        for what, pattern in FOREIGN.items()
        if pattern.search(path.read_text(errors="replace"))
    ]
    assert found == []


def test_the_search_for_machines_and_registries_finds_them() -> None:
    # Put together here, so that this file does not hold them.
    planted = [f"see /{folder}/someone" for folder in ("home", "root", "work")] + [f"https://crates.{'io'}/crates"]
    assert all(any(pattern.search(text) for pattern in FOREIGN.values()) for text in planted)


def test_every_pinned_package_is_a_plain_version(root: Path) -> None:
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 30
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_imports_keep_to_the_contracts(root: Path) -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", result.stdout)


def test_every_target_is_explained(root: Path) -> None:
    text = (root / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE))
    explained = set(re.findall(r"^([a-z][a-z-]*):.*## \S", text, re.MULTILINE))
    assert {"run", "test", "lint", "bench", "loom", "race", "wheel", "clean", "help"} <= targets
    assert targets == explained
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert set(phony.split()) == targets


def test_make_alone_lists_the_targets(root: Path) -> None:
    command = ["make", "--no-print-directory"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert re.search(r"^\s*make test\s+\w", result.stdout, re.MULTILINE)
