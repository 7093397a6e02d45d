from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from looseleaf.cli.app import app

runner = CliRunner()


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_is_not_an_error(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    assert "paged KV cache" in result.stdout
    assert result.stderr == ""


def test_the_version_is_that_of_the_package() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"looseleaf {version('looseleaf')}\n")


@pytest.mark.parametrize("arguments", [["no-such-command"], ["--no-such-option"]])
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("looseleaf: No such")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_a_missing_package_of_the_command_line_is_one_line(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import looseleaf.cli; looseleaf.cli.main()"
    result = run_python(code)
    assert result.returncode == 1
    assert (
        result.stderr == f'looseleaf: the command line needs {package}; install it with: pip install "looseleaf[cli]"\n'
    )


def test_help_starts_without_torch() -> None:
    code = """
import sys, looseleaf.cli
try:
    looseleaf.cli.main()
except SystemExit as exit:
    assert exit.code == 0, exit.code
heavy = {"torch", "transformers"} & set(sys.modules)
assert not heavy, heavy
assert "looseleaf.cli.app" in sys.modules
"""
    result = run_python(code, "--help")
    assert result.returncode == 0, result.stderr
