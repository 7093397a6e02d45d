"""`make gpu` without a card: it says so, and every line of it that a CPU can run is run, on small cases."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tests.kernels import emulated, nvrtc
from torch import Tensor

from gpu import run, targets
from gpu.classic import SOURCE, Classic
from gpu.decode import Case, Timing, make_batch, measure
from looseleaf.machine.compiler import CompilerUnavailable
from looseleaf.ops.cuda_build import CudaTools

if TYPE_CHECKING:
    from typing import Any

ROOT = Path(__file__).parents[2]
SMALL = Case("small", (40, 40), q_heads=8, kv_heads=2)
RAGGED = Case("ragged", (33, 1, 70), q_heads=4, kv_heads=4, block_size=8)
FLOAT8 = Case("float8", (24,), q_heads=4, kv_heads=2, is_8bit=True)
BYTES = 1 << 12


def test_script_without_a_card_says_so() -> None:
    places = f"{ROOT / 'python'}{os.pathsep}{ROOT / 'benches'}"
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": places}
    command = [sys.executable, str(ROOT / "benches" / "gpu" / "run.py")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "no CUDA device" in done.stdout


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Classic:
    """The classic kernel in the emulator."""
    folder = tmp_path_factory.mktemp("classic")
    root = emulated.sources()
    flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", f"-I{root / 'include'}", f"-I{root}"]
    units = [str(root / name) for name in emulated.EMULATOR]
    target = folder / "classic.so"
    command = [emulated.compiler_path(), *flags, "-o", str(target), "-x", "c++", str(SOURCE), *units]
    subprocess.run(command, check=True)
    return Classic(target)


def _varlen(signature: inspect.Signature) -> Any:
    """What `varlen_attn` computes, for calls that its signature takes."""

    def attend(*args: Any, **options: Any) -> Tensor:
        given = signature.bind(*args, **options).arguments
        assert given["enable_gqa"]
        out = torch.empty_like(given["query"])
        for seq, length in enumerate(given["seqused_k"].tolist()):
            blocks = given["block_table"][seq, : -(-length // given["key"].size(1))].long()
            key, value = (given[name][blocks].flatten(0, 1)[:length].float() for name in ("key", "value"))
            query = given["query"][seq].float().view(key.size(1), -1, key.size(2))
            shares = (query @ key.permute(1, 2, 0) * key.size(2) ** -0.5).softmax(-1)
            out[seq] = (shares @ value.transpose(0, 1)).flatten(0, 1)
        return out

    return attend


def test_timings_run_on_small_cases(kernel: Classic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("torch.nn.attention.varlen", reason="this PyTorch has no attention with a block table")
    signature = inspect.signature(module.varlen_attn)
    if "block_table" not in signature.parameters:
        pytest.skip("this PyTorch has no attention with a block table")
    monkeypatch.setattr(module, "varlen_attn", _varlen(signature))
    path = tmp_path / "timings.json"
    run.time_cases(path, "cpu", (SMALL, RAGGED, FLOAT8), (BYTES, BYTES), kernel)
    results = json.loads(path.read_text())
    assert results["read_ceiling_gigabytes"] > 0
    small, ragged, float8 = results["timings"]
    assert all(seconds > 0 for seconds in small["others"].values())
    assert {name: type(value) for name, value in ragged["others"].items()} == {
        "gather + SDPA": str,
        "varlen_attn": float,
        "classic": float,
    }
    assert {name: type(value) for name, value in float8["others"].items()} == {
        "gather + SDPA": float,
        "varlen_attn": str,
        "classic": str,
    }
    assert run.print_tables(results)


def test_baseline_that_is_wrong_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu.decode.gathered", lambda batch: lambda _table: torch.zeros_like(batch.query))
    others = measure(SMALL, "cpu", BYTES, 1.0, None).others
    assert str(others["gather + SDPA"]).startswith("differs by")
    assert others["classic"] == "not compiled"


def test_wrong_result_of_ours_fails_its_case_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu.decode._alone", lambda batch, seq: batch.query[seq])
    path = tmp_path / "timings.json"
    run.time_cases(path, "cpu", (SMALL,), (BYTES, BYTES), "not here")
    results = json.loads(path.read_text())
    assert "differs from attention over its tokens" in results["timings"][0]["result"]
    assert results["classic"] == "not here"
    assert not run.print_tables(results)


def test_steps_print_goals_and_end_with_what_the_tests_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def pretend(command: list[str], seconds: float) -> dict[str, object]:
        assert seconds <= run.BUDGET_SECONDS
        if "--timings" in command:
            run.time_cases(Path(command[-1]), "cpu", (SMALL,), (BYTES, BYTES), "not here")
        return {"exit": 0}

    monkeypatch.setattr(run, "run", pretend)
    results: dict[str, object] = {}
    assert run.steps(results, lambda most: most)
    text = capsys.readouterr().out
    assert "missed not measured  1 x 8k, 64/8: <= 20 us" in text
    assert {"tests", "timing", "timings", "goals"} <= set(results)
    json.dumps(results)


def test_command_that_takes_too_long_is_ended() -> None:
    assert run.run([sys.executable, "-c", "print(3)"], 60)["last_lines"] == ["3"]
    assert run.run([sys.executable, "-c", ""], 5) == {"result": "no time was left"}


def test_goals_are_met_by_figures_that_reach_them() -> None:
    good = {case.name: Timing(case.name, 1e-5, 1, 0.95, {"classic": 3e-5}) for case in targets.CASES}
    good[targets.FLOAT8].seconds = 5e-6
    good[targets.ONE_SHORT].seconds = 5e-6
    found = targets.verdicts(good)
    missed = {verdict.goal.partition(" in ")[0] for verdict in found if not verdict.is_met}
    assert missed == {"faster than gather + SDPA", "faster than varlen_attn"}
    assert not any(verdict.is_met for verdict in targets.verdicts({}))
    slow = {name: Timing(name, 1.0, 1, 0.5, {"classic": 0.5}) for name in good}
    assert [verdict.goal for verdict in targets.verdicts(slow) if verdict.is_met] == [
        "blocks of 64: time within 3 % of blocks of 16",
        "ragged: >= 0.9 of the bandwidth of equal lengths",
    ]


def test_cases_hold_what_their_goals_say() -> None:
    sizes = {case.name: case.num_bytes for case in targets.CASES}
    assert sizes[targets.HALF] >= 512 << 20
    assert sizes[targets.FULL] >= 1 << 30
    assert abs(sizes[targets.RAGGED] / sizes[targets.FULL] - 1) < 0.05


@pytest.mark.parametrize("case", [SMALL, RAGGED])
def test_classic_kernel_agrees(kernel: Classic, case: Case) -> None:
    batch = make_batch(case, "cpu", BYTES)
    out = kernel.attend(batch.query, batch.caches, batch.tables[1], batch.lens, max(case.seq_lens))
    expected = batch.attend(batch.tables[1], torch.empty_like(batch.query))
    assert float((out.float() - expected.float()).norm() / expected.float().norm()) <= 1e-2


def test_classic_kernel_is_compiled_and_loaded_by_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        CudaTools.find()
    except CompilerUnavailable as error:
        pytest.skip(f"needs nvcc: {error}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert isinstance(run.compiled_classic(), Classic)


def test_classic_kernel_compiles_for_cards() -> None:
    _, found = nvrtc.compile_text(SOURCE.read_text(), ["looseleaf::classic_kernel"], "sm_80")
    assert [kernel.spilled_bytes for kernel in found] == [0]
