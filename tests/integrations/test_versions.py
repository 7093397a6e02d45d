"""The paged cache under each version of transformers in `overlays`, once `make matrix` has installed it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = sorted((Path(__file__).parent / "overlays").glob("*.txt"))
FILES = (
    "test_paged_cache.py",
    "test_paged_cache_prompts.py",
    "test_paged_cache_misuse.py",
    "test_model_families.py",
    "test_multimodal.py",
)
# Older versions import what newer versions of PyTorch deprecate.
ALLOWED = "ignore:`torch.jit.script` is deprecated:FutureWarning"
SHOW = "import transformers; print(transformers.__version__)"


def test_there_are_versions_to_test() -> None:
    assert len(LISTS) == 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("requirements", LISTS, ids=lambda path: path.stem)
def test_the_paged_cache_works_with(requirements: Path) -> None:
    overlay = ROOT / "target" / "overlays" / requirements.stem
    if not (overlay / "installed").is_file():
        pytest.skip(f"{requirements.stem} is not installed; make matrix does that")
    folders = [str(overlay), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    version = re.findall("^transformers==(.+)$", requirements.read_text(), re.MULTILINE)
    assert [run([sys.executable, "-c", SHOW], environment).strip()] == version
    files = [str(Path(__file__).parent / name) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", ALLOWED, "-m", "not model", *files]
    summary = run(command, environment).splitlines()[-1]
    assert int(re.findall(r"(\d+) passed", summary)[0]) > 60


def run(command: list[str], environment: dict[str, str]) -> str:
    """What a command prints; it must end well."""
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout
