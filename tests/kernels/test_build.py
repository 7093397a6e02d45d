"""The library is compiled once, kept whole, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch

from looseleaf.errors import InvalidArgument
from looseleaf.machine import instruction_sets
from looseleaf.machine.compiler import Compiler
from looseleaf.ops import build, library_cache, native

if TYPE_CHECKING:
    import ctypes
    from pathlib import Path

CALL = """
import warnings
import torch
from looseleaf import ops
from looseleaf.ops import native
assert not native.is_loaded(), "nothing is loaded at import"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        cache = torch.zeros(2, 1, 4, 8)
        ops.write(torch.ones(1, 1, 8), torch.ones(1, 1, 8), cache, cache, torch.tensor([5]))
        assert cache[1, 0, 1].sum() == 8
print(native.kernel_name(torch.float32), len(caught), *(warning.message for warning in caught))
"""


def _call(**environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", CALL], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return done.stdout.strip(), done.stderr


def test_without_a_compiler_one_message_says_so_and_pytorch_takes_over(tmp_path: Path) -> None:
    out, _ = _call(LOOSELEAF_CACHE=str(tmp_path), CXX="no-such-compiler")
    assert out.startswith("pytorch 1 no compiled CPU kernels: CXX names no-such-compiler")
    assert "Install a C++20 compiler" in out


def test_compiling_can_be_forbidden(tmp_path: Path) -> None:
    # Any program that tells its version passes for a compiler: it is never asked for more.
    out, _ = _call(LOOSELEAF_CACHE=str(tmp_path), LOOSELEAF_KERNELS="prebuilt", CXX=sys.executable)
    assert out.startswith("pytorch 1 no compiled CPU kernels: LOOSELEAF_KERNELS=prebuilt forbids to compile")
    assert not list(tmp_path.iterdir())


def test_kernels_can_be_left_out_quietly(tmp_path: Path) -> None:
    assert _call(LOOSELEAF_CACHE=str(tmp_path), LOOSELEAF_KERNELS="none") == ("pytorch 0", "")


@pytest.mark.usefixtures("library")
def test_step_of_a_cache_runs_in_the_library() -> None:
    script = """
import torch
from looseleaf import PagedKVCache
from looseleaf.ops import native
sizes = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 8, "num_blocks": 4, "block_size": 16}
cache = PagedKVCache(**sizes, dtype=torch.float32, max_sequences=1, max_sequence_len=64, max_batch_tokens=64)
step = cache.step([cache.admit([1, 2, 3])])
assert not native.is_loaded()
step.attend(0, torch.ones(3, 2, 8), torch.ones(3, 1, 8), torch.ones(3, 1, 8))
assert native.is_loaded()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_unknown_values_of_the_environment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOSELEAF_KERNELS", "always")
    with pytest.raises(InvalidArgument, match="LOOSELEAF_KERNELS"):
        library_cache.mode()
    monkeypatch.setenv("LOOSELEAF_SETS", "avx512,mmx")
    with pytest.raises(InvalidArgument, match="LOOSELEAF_SETS"):
        instruction_sets.chosen_sets()


@pytest.mark.usefixtures("library")
def test_forced_set_that_is_not_there_fails_the_call() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LOOSELEAF_ISA": "mmx"},
    )
    assert done.returncode == 1
    assert "LOOSELEAF_ISA" in done.stderr


@pytest.fixture
def stand_in(library: ctypes.CDLL, tmp_path: Path) -> Path:
    """A compiler that takes two seconds to copy this session's library: what is tested is everything around it."""
    script = tmp_path / "compiler"
    script.write_text(f"""#!/bin/sh
for argument; do
    [ "$last" = -o ] && target=$argument
    [ "$argument" = -shared ] && linked=yes
    last=$argument
done
[ "$last" = --version ] && echo stand-in
[ -z "$target" ] || : > "$target"
[ -z "$linked" ] || {{ echo linked >> "{tmp_path}/log"; sleep 2; cp "{library._name}" "$target"; }}
""")
    script.chmod(0o755)
    return script


def test_concurrent_processes_share_one_compilation_and_a_read_only_cache_serves(
    tmp_path: Path, stand_in: Path
) -> None:
    cache = tmp_path / "cache"
    variables = {"LOOSELEAF_CACHE": str(cache), "CXX": str(stand_in)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CALL],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | variables,
        )
        for _ in range(3)
    ]
    ended = [process.communicate() for process in processes]
    kernels = native.kernel_name(torch.float32)
    assert [out.strip() for out, _ in ended] == [f"{kernels} 0"] * 3
    assert sum("compiled in" in err for _, err in ended) == 1
    assert (tmp_path / "log").read_text() == "linked\n"
    libraries = list(cache.rglob(build.LIBRARY_NAME))
    assert len(libraries) == 1

    cache.chmod(0o555)
    try:
        assert _call(**variables) == (f"{kernels} 0", "")
    finally:
        cache.chmod(0o755)
    libraries[0].write_bytes(libraries[0].read_bytes()[:1000])  # half a file is no library: it is made again
    out, err = _call(**variables)
    assert out == f"{kernels} 0"
    assert "compiled in" in err


def test_process_that_waits_too_long_compiles_for_itself(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(stand_in))
    monkeypatch.setattr(library_cache, "_LOCK_TIMEOUT_SECONDS", 0.1)
    with ThreadPoolExecutor(2) as workers:
        paths = list(workers.map(lambda _: build.kept().make(), range(2)))
    assert len(set(paths)) == 2
    assert sum(path.is_relative_to(tmp_path) for path in paths) == 1
    assert (tmp_path / "log").read_text() == "linked\n" * 2
    assert all(path.stat().st_size > 0 for path in paths)


def test_other_compiler_flags_or_sources_are_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "a.cpp").write_text("int a;")
    keys = {build._key(sources, ("avx2",)), build._key(sources, ("avx2", "avx512"))}
    (sources / "a.cpp").write_text("int b;")
    keys.add(build._key(sources, ("avx2",)))
    monkeypatch.setattr(torch, "__version__", "0.0.0")
    keys.add(build._key(sources, ("avx2",)))
    assert len(keys) == 4
    compilers = [
        Compiler(*words).key() for words in ((("c++",), "1"), (("c++",), "2"), (("g++",), "1"), (("env", "g++"), "1"))
    ]
    assert len(set(compilers)) == 4


def test_library_in_the_cache_serves_without_a_compiler_and_is_made_again_if_it_cannot_be_loaded(
    tmp_path: Path, stand_in: Path
) -> None:
    cache = {"LOOSELEAF_CACHE": str(tmp_path / "cache")}
    compiler = {"CXX": str(stand_in)}
    right = (f"{native.kernel_name(torch.float32)} 0", "")
    assert _call(**cache, **compiler)[0] == right[0]
    for variables in ({"CXX": "no-such-compiler"}, {"LOOSELEAF_KERNELS": "prebuilt"}):
        assert _call(**cache, **variables) == right

    (library,) = (tmp_path / "cache").rglob(build.LIBRARY_NAME)
    library.write_bytes(bytes(library.stat().st_size))
    out, _ = _call(**cache, LOOSELEAF_KERNELS="prebuilt")
    assert out.startswith("pytorch 1 no compiled CPU kernels: LOOSELEAF_KERNELS=prebuilt forbids to compile")
    library.write_bytes(bytes(library.stat().st_size))
    assert _call(**cache, **compiler)[0] == right[0]
    assert _call(**cache, **compiler) == right
    assert (tmp_path / "log").read_text() == "linked\n" * 2


@pytest.mark.parametrize("has_compiler", [True, False])
def test_user_without_a_home_gets_kernels_or_one_warning(tmp_path: Path, stand_in: Path, has_compiler: bool) -> None:
    script = f"""
from pathlib import Path
def home():
    raise RuntimeError("Could not determine home directory.")
Path.home = home
{CALL}"""
    compiler = str(stand_in) if has_compiler else "no-such-compiler"
    environment = {
        name: value for name, value in os.environ.items() if name not in ("LOOSELEAF_CACHE", "XDG_CACHE_HOME")
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"CXX": compiler, "TMPDIR": str(tmp_path)},
    )
    if has_compiler:
        assert done.stdout.strip() == f"{native.kernel_name(torch.float32)} 0"
        assert "there is no home directory" in done.stderr
    else:
        assert done.stdout.startswith("pytorch 1 no compiled CPU kernels: CXX names no-such-compiler")


def test_unknown_set_is_refused_by_every_call_before_anything_is_compiled(tmp_path: Path) -> None:
    script = """
import torch
from looseleaf import ops
from looseleaf.errors import InvalidArgument
cache, pair = torch.zeros(2, 1, 4, 8), torch.tensor([[0, 1]])
state = torch.zeros(1, 1, 8), torch.zeros(1, 1)
for call in (
    lambda: ops.copy_blocks([cache], pair.int()),
    lambda: ops.swap_blocks([cache], [cache.clone()], pair),
    lambda: ops.merge_states(*state, *state),
    lambda: ops.kernel_name(torch.float32),
) * 2:
    try:
        call()
    except InvalidArgument as error:
        print(error)
"""
    variables = {"LOOSELEAF_CACHE": str(tmp_path), "LOOSELEAF_ISA": "mmx"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ | variables
    )
    allowed = "portable, avx2, avx512, avx512_bf16, avx512_amx"
    assert done.stdout == f"LOOSELEAF_ISA must be {allowed} or empty, was 'mmx'\n" * 8
    assert not list(tmp_path.iterdir())


def test_cache_that_cannot_be_written_costs_a_compilation_and_no_more(tmp_path: Path, stand_in: Path) -> None:
    blocked, temporary = tmp_path / "file", tmp_path / "temporary"
    blocked.write_text("not a folder")
    temporary.mkdir()
    out, err = _call(LOOSELEAF_CACHE=str(blocked), CXX=str(stand_in), TMPDIR=str(temporary))
    assert out == f"{native.kernel_name(torch.float32)} 0"
    assert "this process compiles for itself" in err
    assert "compiled in" in err
    assert list(temporary.glob("looseleaf-*")) == []
