from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from typer.testing import CliRunner

from looseleaf import __version__, ops
from looseleaf.bench import Measurement, Settings, allocator, attention
from looseleaf.bench.measure import machine
from looseleaf.cli.app import app
from looseleaf.cli.figures import show_tables

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("one_thread")

runner = CliRunner()


@pytest.mark.parametrize(("subject", "num_rows"), [("allocator", 2), ("attention", 6), ("engine", 3)])
def test_every_figure_stands_beside_its_baseline(subject: str, num_rows: int) -> None:
    result = runner.invoke(app, ["bench", subject, "--quick", "--json"])
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    rows = document["rows"]
    assert document["subject"] == subject
    assert document["machine"]["looseleaf"] == __version__
    assert document["machine"].keys() >= {"processor", "cores", "load", "python", "numpy", "date", "command"}
    assert len(rows) == num_rows
    for case in {row["case"] for row in rows}:
        of_case = [row for row in rows if row["case"] == case]
        (baseline,) = [row for row in of_case if row["is_baseline"]]
        assert baseline["ratio"] == 1
        assert any("looseleaf" in row["who"] for row in of_case)
        for row in of_case:
            assert row["ratio"] == pytest.approx(baseline["cpu_seconds"] / row["cpu_seconds"])
            assert row["wall_seconds"] > 0


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-4), (torch.float16, 8e-3), (torch.bfloat16, 8e-3)], ids=str
)
def test_attention_that_is_a_little_wrong_is_not_timed(
    dtype: torch.dtype, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(repeats=1, is_quick=True)
    assert len(attention.run(settings, dtype=dtype)) == 6
    attend = ops.attend

    def wrong(*arguments: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = attend(*arguments, **options)
        return out + error, lse

    monkeypatch.setattr(ops, "attend", wrong)
    with pytest.raises(AssertionError, match="not close"):
        attention.run(settings, dtype=dtype)


def test_tables_are_whole_in_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    case = "one case, " + ", ".join(f"part {number} of its name" for number in range(6))
    rows = [
        Measurement(case=case, who=who, cpu_seconds=seconds, wall_seconds=123.45, is_baseline=seconds > 1)
        for who, seconds in (("transformers, padded batch", 217.0), ("looseleaf engine", 1.0))
    ]
    monkeypatch.setenv("COLUMNS", "80")
    show_tables([*rows, *(replace(row, case="another") for row in rows)], machine())
    text = capsys.readouterr().out
    *lines, last = text.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(text.split())
    assert case in words
    assert "times as fast, " in words
    assert words.count("217.00 ") == 4, "the time of the baseline, and how many times as fast the other is, twice"
    assert "…" not in text
    assert f"looseleaf {__version__}" in last
    assert last.startswith(machine()["processor"])


def test_a_table_for_people_and_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="--plot needs matplotlib, which `make setup` installs")
    path = tmp_path / "figures.png"
    result = runner.invoke(app, ["bench", "allocator", "--quick", "--plot", str(path)])
    assert result.exit_code == 0, result.stderr
    assert "baseline" in result.stdout
    assert "Python lists" in result.stdout
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 2000


def test_a_plot_without_matplotlib_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = runner.invoke(app, ["bench", "allocator", "--quick", "--plot", str(tmp_path / "figures.png")])
    assert result.exit_code == 1
    assert "pip install matplotlib" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none/figures.png", "there is no folder"),
        ("figures.txt", "--plot must end in .png, not 'figures.txt'"),
        ("figures", "--plot must end in .png, not 'figures'"),
    ],
)
def test_a_plot_that_cannot_be_is_refused_before_anything_is_measured(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "run", lambda _settings: pytest.fail("measured"))
    result = runner.invoke(app, ["bench", "allocator", "--quick", "--plot", str(tmp_path / name)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_plot_that_fails_loses_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="--plot needs matplotlib, which `make setup` installs")
    folder = tmp_path / "folder"
    folder.mkdir()
    rows = allocator.run(Settings(repeats=1, is_quick=True))

    def run(_settings: Settings) -> list[Measurement]:
        folder.rmdir()
        return rows

    monkeypatch.setattr(allocator, "run", run)
    result = runner.invoke(app, ["bench", "allocator", "--quick", "--plot", str(folder / "figures.PNG")])
    assert result.exit_code == 1
    assert "Python lists" in result.stdout
    assert result.stderr == f"looseleaf: --plot {folder / 'figures.PNG'}: No such file or directory\n"


@pytest.mark.parametrize(
    ("subject", "package"), [("attention", "torch"), ("engine", "torch"), ("engine", "transformers")]
)
def test_a_missing_package_is_one_line_with_the_command_that_installs_it(subject: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import looseleaf.cli; looseleaf.cli.main()"
    command = [sys.executable, "-c", code, "bench", subject]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    expected = f'the package {package} is missing; install it with: pip install "looseleaf[transformers]"'
    assert result.stderr == f"looseleaf: {expected}\n"


def test_the_allocator_is_measured_without_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import looseleaf.cli; looseleaf.cli.main()"
    command = [sys.executable, "-c", code, "bench", "allocator", "--quick", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["rows"]


def test_wrong_usage() -> None:
    assert runner.invoke(app, ["bench", "everything"]).exit_code == 2
    assert runner.invoke(app, ["bench", "allocator", "--real"]).exit_code == 2
    assert runner.invoke(app, ["bench", "attention", "--device", "cpu"]).exit_code == 2
