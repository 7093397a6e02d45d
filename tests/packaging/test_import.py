from __future__ import annotations

import subprocess
import sys

import pytest

# Seconds. It takes a few milliseconds where nothing else runs, and torch alone takes more than a second.
LONGEST_IMPORT = 0.3
IMPORT_ALONE = """
import time
import numpy, numpy.typing
start = time.perf_counter()
import looseleaf
print(time.perf_counter() - start)
"""
FIRST_USE_OF_TENSORS = """
import sys
import looseleaf
assert "torch" not in sys.modules
looseleaf.ops
assert "torch" in sys.modules
"""


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_import_costs_little_beside_numpy() -> None:
    assert min(float(run_python(IMPORT_ALONE)) for _ in range(5)) < LONGEST_IMPORT


def test_torch_is_imported_when_tensors_are_first_asked_for() -> None:
    run_python(FIRST_USE_OF_TENSORS)


def test_without_torch_the_tensor_parts_say_what_to_install() -> None:
    code = """
import sys
sys.modules["torch"] = None
import looseleaf
try:
    looseleaf.PagedKVCache
except ImportError as error:
    print(error)
"""
    assert 'pip install "looseleaf[torch]"' in run_python(code)


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_its_packages_the_engine_says_what_to_install(package: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
import looseleaf
try:
    looseleaf.Engine
except ImportError as error:
    print(error)
"""
    assert f'looseleaf.Engine needs {package}: pip install "looseleaf[{package}]"' in run_python(code)


def test_what_goes_into_and_out_of_the_engine_needs_no_torch() -> None:
    code = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from looseleaf import SamplingParams
from looseleaf.engine import FinishReason, Report, Result, Timings, TokenEvent
print(SamplingParams(max_tokens=3).max_tokens)
"""
    assert run_python(code) == "3\n"
