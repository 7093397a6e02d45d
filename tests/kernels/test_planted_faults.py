"""Faults planted in the CUDA attention kernels, each caught by the emulator, by its result, or by AddressSanitizer."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.kernels import emulated

if TYPE_CHECKING:
    from pathlib import Path

NUM_SAMPLES = 12


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of a header, changed."""

    name: str
    file: str
    right: str
    wrong: str
    layer: str  # what its message begins with


MMA, SIMT, COMBINE = "attend_mma.h", "attend_simt.h", "attend_combine_kernel.h"
FAULTS = [
    Fault(
        "no barrier before the merge", MMA, "  __syncthreads();  // every warp is done with its slices", "", "stopped"
    ),
    Fault("no barrier inside the merge", MMA, "    }\n  }\n  __syncthreads();\n", "    }\n  }\n", "stopped"),
    Fault("no barrier after the merge", MMA, "  __syncthreads();  // the next item's slices", "  //", "stopped"),
    Fault("no barrier after the wait", MMA, "    __syncwarp();  // copies of the other lanes", "", "stopped"),
    Fault("no barrier before the next copy", MMA, "    __syncwarp();  // the slice has been read", "    //", "stopped"),
    Fault("wait for one group too few", MMA, "wait_copies<kStages - 1>()", "wait_copies<kStages>()", "stopped"),
    Fault(
        "one stage too few",
        MMA,
        "kWarps * kStages * 2 * kSliceBytes",
        "kWarps * (kStages - 1) * 2 * kSliceBytes",
        "stopped",
    ),
    Fault(
        "votes of some lanes",
        MMA,
        "      float weight = state.weight[n][j];",
        "      if (lane > 15) continue;\n      float weight = state.weight[n][j];",
        "stopped",
    ),
    Fault("one token past the end", MMA, "first + row < source.end_token", "first + row <= source.end_token", "value"),
    Fault("zeros not filled in", MMA, "has_v ? v : source.v, has_v)", "has_v ? v : source.v, true)", "value"),
    Fault(
        "fragment registers exchanged",
        MMA,
        "load_matrices(keys, k_slice + element_at<Shape>(lane % 16, 2 * i + lane / 16))",
        "load_matrices(keys, k_slice + element_at<Shape>(lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2))",
        "value",
    ),
    Fault(
        "values not transposed",
        MMA,
        "load_matrices_transposed(values, v_slice + element_at<Shape>(lane % 8",
        "load_matrices(values, v_slice + element_at<Shape>(lane % 8",
        "value",
    ),
    Fault(
        "shares not transposed",
        MMA,
        "transpose_matrix(pack_pair(T{}, scores[n][0], scores[n][1]))",
        "pack_pair(T{}, scores[n][0], scores[n][1])",
        "value",
    ),
    Fault(
        "values read unswizzled",
        MMA,
        "v_slice + element_at<Shape>(lane % 8 + lane / 16 * 8, 2 * i + lane / 8 % 2)",
        "v_slice + (lane % 8 + lane / 16 * 8) * Shape::kDim + (2 * i + lane / 8 % 2) * 8",
        "value",
    ),
    Fault("weight not rescaled", MMA, "        state.weight[n][j] *= rescale;\n", "", "value"),
    Fault("window of the table too wide", MMA, "kWindowStep = kWarpLanes - 2", "kWindowStep = kWarpLanes", "value"),
    Fault(
        "offsets of 32 bits",
        MMA,
        "source.k + block * a.k.block_stride",
        "source.k + static_cast<int32_t>(block * a.k.block_stride)",
        "crash",
    ),
    Fault("a part left out", COMBINE, "part <= last; ++part) {", "part < last; ++part) {", "value"),
    Fault(
        "table read one past", MMA, "index < num_cells ? cells[index]", "index <= num_cells ? cells[index]", "sanitizer"
    ),
    Fault(
        "no barrier before the merge",
        SIMT,
        "    attend_steps<T>(a, stretch, memory);\n    __syncthreads();",
        "    attend_steps<T>(a, stretch, memory);",
        "stopped",
    ),
    Fault("shares overwritten early", SIMT, "    __syncwarp();  // the last step's shares", "    //", "stopped"),
]
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


class Samples:
    """Compiles csrc/emu/samples.cpp, with or without a fault, and runs it."""

    def __init__(self, folder: Path, flags: tuple[str, ...]) -> None:
        self.folder = folder
        self.flags = flags
        self.objects = emulated.compile_units(folder, emulated.EMULATOR, flags)

    def run(self, headers: Path | None = None, *arguments: str) -> subprocess.CompletedProcess[str]:
        places = () if headers is None else (f"-I{headers}",)
        (main,) = emulated.compile_units(self.folder, ("emu/samples.cpp",), (*self.flags, *places))
        program = self.folder / "samples"
        subprocess.run([emulated.compiler_path(), *self.flags, "-o", str(program), main, *self.objects], check=True)
        return self.again(*arguments)

    def again(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.folder / "samples"), *arguments]
        environment = {"ASAN_OPTIONS": "detect_leaks=0"}  # a stopped launch leaves its frames
        return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def plant(fault: Fault, folder: Path) -> Path:
    """A folder of headers that stands before the right ones."""
    text = (emulated.sources() / "include/looseleaf" / fault.file).read_text()
    assert text.count(fault.right) == 1, fault.name
    target = folder / "looseleaf" / fault.file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text.replace(fault.right, fault.wrong))
    return folder


def layer_of(done: subprocess.CompletedProcess[str]) -> str:
    """Which layer caught a fault, or "none"."""
    if "Sanitizer" in done.stderr or "runtime error" in done.stderr:
        return "sanitizer"
    if done.returncode < 0:
        return "crash"
    lines = done.stdout.splitlines()
    return next((layer for layer in ("stopped", "value") if any(line.startswith(layer) for line in lines)), "none")


@pytest.mark.parametrize("sanitize", [(), SANITIZE])
def test_sound_kernels_pass_under_every_schedule(tmp_path: Path, sanitize: tuple[str, ...]) -> None:
    samples = Samples(tmp_path, sanitize)
    runs = [samples.run(), samples.again("1"), samples.again("2", "1"), samples.again("2", "2")]
    for done in runs:
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith(f"{NUM_SAMPLES} of {NUM_SAMPLES} samples\n")


@pytest.mark.timeout(600)
def test_every_planted_fault_is_caught(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("plain", "sanitized")}
    for folder in folders.values():
        folder.mkdir()
    plain, sanitized = Samples(folders["plain"], ()), Samples(folders["sanitized"], SANITIZE)
    found = {}
    for index, fault in enumerate(FAULTS):
        samples = sanitized if fault.layer == "sanitizer" else plain
        found[index] = layer_of(samples.run(plant(fault, tmp_path / f"fault-{index}")))
    caught = sum(layer != "none" for layer in found.values())
    print(f"caught {caught} of {len(FAULTS)}")  # noqa: T201 - what the test is for
    assert len(FAULTS) >= 10
    assert [(fault.name, found[i]) for i, fault in enumerate(FAULTS) if found[i] != fault.layer] == []
