from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from looseleaf.machine import cuda_driver
from looseleaf.machine.instruction_sets import all_sets, expected_set
from looseleaf.ops import native

if TYPE_CHECKING:
    from pathlib import Path

RUN = "import looseleaf.cli; looseleaf.cli.main()"
DRIVER = """
#include <string.h>
int cuDriverGetVersion(int* version) { *version = 13020; return 0; }
int cuInit(unsigned flags) { return FAULT; }
int cuDeviceGetCount(int* count) { *count = 1; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char* name, int size, int device) { strncpy(name, "Invented", size); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
int cuGetErrorString(int error, const char** text) { *text = "no device is there"; return 0; }
"""


def doctor(*options: str, before: str = "", **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + RUN, "doctor", *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "0"} | environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def found(*, before: str = "", **environment: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(doctor("--json", before=before, **environment))
    return document


def invent_driver(folder: Path, fault: int) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run([compiler, "-w", f"-DFAULT={fault}", "-shared", "-fPIC", source, "-o", library], check=True)
    return library


def test_nothing_is_compiled_and_the_compiler_is_named(tmp_path: Path) -> None:
    document = found(LOOSELEAF_CACHE=str(tmp_path), CXX=f"env {sys.executable}")
    assert document["cpu_kernels"]["source"] == "compile"
    assert document["compiler"].endswith(f"env {sys.executable}")
    assert document["switches"]["LOOSELEAF_CACHE"] == str(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_torch_the_machine_is_still_described() -> None:
    document = found(before="import sys; sys.modules['torch'] = None;")
    assert document["torch"] is None
    for name in ("cpu_kernels", "cuda_kernels"):
        assert document[name]["source"] == "none"
        assert "torch cannot be imported" in document[name]["reason"]
    assert "portable" in document["instruction_sets"]


def test_without_a_compiler_the_reason_stands(tmp_path: Path) -> None:
    document = found(LOOSELEAF_CACHE=str(tmp_path), CXX="no-such-compiler")
    assert document["compiler"] is None
    assert document["cpu_kernels"]["set"] == "pytorch"
    assert "no-such-compiler" in document["cpu_kernels"]["reason"]


def test_switch_that_means_nothing_is_told() -> None:
    for name, value in (("LOOSELEAF_KERNELS", "always"), ("LOOSELEAF_ISA", "mmx"), ("LOOSELEAF_SETS", "mmx")):
        reason = found(**{name: value, "LOOSELEAF_CACHE": "nowhere"})["cpu_kernels"]["reason"]
        assert reason.startswith(f"every call fails: {name} must")


def test_card_of_an_invented_driver_is_seen_and_each_refused_home_has_its_reason(tmp_path: Path) -> None:
    invent_driver(tmp_path, 0)
    home = tmp_path / "empty"
    document = found(LD_LIBRARY_PATH=str(tmp_path), CUDA_HOME=str(home), LOOSELEAF_CACHE=str(tmp_path / "cache"))
    assert document["cuda_driver"] == "13.2"
    assert document["cuda_cards"] == ["Invented (9.0)"]
    assert document["cuda_toolkits"][str(home)] == "lacks bin/nvcc"
    if torch.version.cuda is not None:
        assert document["cuda_kernels"]["reason"].startswith("the prebuilt library is not there")


def test_driver_without_a_card_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "_LIBRARY", str(invent_driver(tmp_path, 100)))
    assert cuda_driver.find_driver() == cuda_driver.Driver((13, 2), (), "no device is there")
    monkeypatch.setattr(cuda_driver, "_LIBRARY", str(tmp_path / "none"))
    assert cuda_driver.find_driver() is None


def test_the_table_has_the_same_facts(tmp_path: Path) -> None:
    text = doctor(LOOSELEAF_CACHE=str(tmp_path), LOOSELEAF_KERNELS="none")
    for words in (torch.__version__, "LOOSELEAF_KERNELS=none", "instruction sets", "CUDA driver"):
        assert words in text


@pytest.mark.usefixtures("library")
def test_expected_set_is_the_one_that_the_library_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOSELEAF_ISA", raising=False)
    for dtype in (torch.float32, torch.bfloat16):
        is_bfloat16 = dtype == torch.bfloat16
        assert native.kernel_name(dtype) == expected_set(all_sets(), is_bfloat16=is_bfloat16)
