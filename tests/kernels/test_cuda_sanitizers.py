"""Samples of the grid and the moves, as the operators launch them, without Python under the compiler's sanitizers."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import torch
from tests.kernels import emulated, test_cuda_moves
from tests.kernels.recorded import Recorder, compile_replay
from tests.kernels.test_cuda_attend import check, emulator
from tests.kernels.test_grid import _build
from tests.kernels.test_planted_faults import Fault, plant
from tests.kernels.test_ptx import MOST_ROWS, SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["emulator"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str], int]:
    """The file, the kernels that it needs, and the number of its calls."""
    recorder = Recorder()
    ops = torch.ops.looseleaf_emulated
    emulated.load()
    with recorder:
        for index, case in SAMPLES:
            emulated.schedule("round-robin", processors=1 + index % 2)
            check(_build(case, index, MOST_ROWS))
        for layout, dtype, stored in (
            ("fused", torch.bfloat16, torch.bfloat16),
            ("odd", torch.float32, torch.float8_e4m3fn),
        ):
            test_cuda_moves.test_write_and_gather_agree(ops, layout, dtype, stored)
            test_cuda_moves.test_blocks_are_copied_whole(ops, layout, stored)
        test_cuda_moves.test_states_are_merged(ops, torch.float16)
        test_cuda_moves.test_slot_that_stands_again_takes_the_last_row(ops, "round-robin")
    path = tmp_path_factory.mktemp("recording") / "calls"
    return path, recorder.kernels, recorder.write(path)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("sanitize", ["thread", "address,undefined"])
def test_samples_pass_under_sanitizers(recording: tuple[Path, set[str], int], sanitize: str, tmp_path: Path) -> None:
    path, kernels, num_calls = recording
    assert num_calls >= len(SAMPLES) + 6
    program = compile_replay(tmp_path, kernels, sanitize)
    done = subprocess.run([str(program), str(path)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout == f"{num_calls} of {num_calls} calls\n"


def test_race_between_blocks_is_seen(tmp_path: Path) -> None:
    """Blocks that write the same slot: nothing that one block alone can show."""
    fault = Fault(
        "duplicates written", "move_kernels.h", "slot < 0 || (superseded >> which & 1u) != 0", "slot < 0", "race"
    )
    emulated.load()
    with Recorder() as recorder:
        test_cuda_moves.test_slot_that_stands_again_takes_the_last_row(torch.ops.looseleaf_emulated, "round-robin")
    path = tmp_path / "calls"
    recorder.write(path)
    headers = plant(fault, tmp_path / "planted")
    program = compile_replay(tmp_path, recorder.kernels, "thread", (f"-I{headers}",))
    done = subprocess.run([str(program), str(path)], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert "data race" in done.stderr
    assert "write_kernel" in done.stderr
