"""What the compiler makes of every CUDA kernel: registers, spills, and the instructions that the design rests on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.kernels import emulated, nvrtc

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
# A block of 128 threads and two blocks a processor leave 255 to each thread; more blocks need fewer.
MOST_REGISTERS = {"mma": 255, "mma 8-bit": 255, "simt": 255, "plain": 64}


def disassembler() -> str:
    """`cuobjdump`, of a CUDA toolkit or of Triton; skips the test where there is none."""
    found = shutil.which("cuobjdump")
    spec = find_spec("triton")
    if found is None and spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump"
        found = str(bundled) if bundled.is_file() else None
    if found is None:
        pytest.skip("no cuobjdump")
    return found


def machine_code(code: bytes, folder: Path) -> dict[str, str]:
    """The instructions of each kernel."""
    path = folder / "kernels.cubin"
    path.write_bytes(code)
    program = disassembler()
    environment = {"PATH": f"{Path(program).parent}:{os.environ['PATH']}"}  # it calls nvdisasm
    command = [program, "-sass", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    parts = re.split(r"Function : (\w+)", done.stdout)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(
    ("group", "architecture"), [*(("mma", name) for name in ARCHITECTURES), ("mma 8-bit", "sm_80")]
)
def test_attention_kernels_hold_everything_in_registers(group: str, architecture: str, tmp_path: Path) -> None:
    code, found = nvrtc.compile_kernels(group, architecture)
    assert len(found) == len(nvrtc.INSTANCES[group])
    assert [kernel for kernel in found if kernel.spilled_bytes or kernel.registers > MOST_REGISTERS[group]] == []
    kernels = machine_code(code, tmp_path)
    assert len(kernels) == len(found)
    for name, text in kernels.items():
        product = "HMMA.16816.F32.BF16" if "BFloat" in name else "HMMA.16816.F32"
        needed = ("LDGSTS.E.BYPASS.LTC128B.128", "LDSM.16.M88.4", "LDSM.16.MT88.4", product, "MOVM.16.MT88")
        assert [word for word in needed if word not in text] == [], name
        assert re.findall(r"\b(?:LDL|STL)\b", text) == [], name


@pytest.mark.parametrize("group", ["simt", "plain"])
def test_plain_kernels_hold_everything_in_registers(group: str, tmp_path: Path) -> None:
    code, found = nvrtc.compile_kernels(group, "sm_80")
    assert len(found) == len(nvrtc.INSTANCES[group])
    assert [kernel for kernel in found if kernel.spilled_bytes or kernel.registers > MOST_REGISTERS[group]] == []
    wide = {name: "LDG.E.128" in text for name, text in machine_code(code, tmp_path).items()}
    assert len(wide) == len(found)
    moves_bytes = {name for name in wide if any(word in name for word in ("simt", "write", "gather", "copy"))}
    assert moves_bytes
    assert all(wide[name] for name in moves_bytes)


def test_assembly_stands_in_two_files_only() -> None:
    root = emulated.sources()
    files = [path for path in root.rglob("*") if path.suffix in (".h", ".cpp", ".cu")]
    assert len(files) > 30
    with_assembly = {
        path.name for path in files if re.search(r"^\s*asm\b|\basm volatile", path.read_text(), re.MULTILINE)
    }
    assert {"ptx.h", "device.h"} <= with_assembly
    assert {
        name for name in with_assembly if name.startswith(("attend_mma", "attend_simt", "attend_plan", "move_"))
    } == set()


def test_instances_are_few() -> None:
    assert len(nvrtc.MMA) + len(nvrtc.MMA_8BIT) + len(nvrtc.SIMT) <= 48
