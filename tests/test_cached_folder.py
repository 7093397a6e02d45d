from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from looseleaf.cached_folder import cache_root, ensure_folder, is_whole
from looseleaf.errors import CacheFolderUnavailable


def fill(folder: Path) -> None:
    (folder / "weights").write_bytes(b"w" * 100)
    (folder / "nested").mkdir()
    (folder / "nested" / "config").write_text("{}")


def refill(_folder: Path) -> None:
    raise AssertionError("a whole folder is filled again")


def visible(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir() if path.suffix != ".lock")


def test_a_whole_folder_is_neither_filled_nor_locked_again(tmp_path: Path) -> None:
    folder = ensure_folder(tmp_path / "deep" / "model", fill)
    assert (folder / "nested" / "config").read_text() == "{}"
    for lock in folder.parent.glob(".*.lock"):
        lock.unlink()
    assert ensure_folder(folder, refill) == folder
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize(
    "harm", ["missing file", "short file", "no manifest", "broken manifest", "empty manifest", "file"]
)
def test_a_folder_that_is_not_whole_is_made_again(tmp_path: Path, harm: str) -> None:
    folder = ensure_folder(tmp_path / "model", fill)
    match harm:
        case "missing file":
            (folder / "nested" / "config").unlink()
        case "short file":
            (folder / "weights").write_bytes(b"w" * 99)
        case "no manifest":
            (folder / "manifest.json").unlink()
            (folder / "stale").write_text("old")
        case "broken manifest":
            (folder / "manifest.json").write_text('{"weights":')
        case "empty manifest":
            (folder / "manifest.json").write_text("[]")
        case "file":
            folder.rename(tmp_path / "elsewhere")
            folder.write_text("not a folder")
    assert not is_whole(folder)
    ensure_folder(folder, fill)
    assert is_whole(folder)
    assert (folder / "weights").stat().st_size == 100
    assert not (folder / "stale").exists()


def test_a_failure_half_way_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        ensure_folder(tmp_path / "model", fail)
    assert visible(tmp_path) == []
    assert is_whole(ensure_folder(tmp_path / "model", fill))


def test_a_killed_process_leaves_no_folder_and_no_lock(tmp_path: Path) -> None:
    code = """
import os, pathlib, sys
from looseleaf.cached_folder import ensure_folder
def fill(folder):
    (folder / "weights").write_bytes(b"half")
    os._exit(9)
ensure_folder(pathlib.Path(sys.argv[1]), fill)
"""
    folder = tmp_path / "model"
    assert subprocess.run([sys.executable, "-c", code, folder], check=False).returncode == 9
    assert not folder.exists()
    ensure_folder(folder, fill, timeout_seconds=0)
    assert visible(tmp_path) == ["model"]


def test_one_of_many_threads_fills(tmp_path: Path) -> None:
    num_threads = 4
    fills: list[Path] = []
    waiting = threading.Semaphore(0)

    def fill_when_all_wait(folder: Path) -> None:
        fills.append(folder)
        for _ in range(num_threads - 1):
            assert waiting.acquire(timeout=30)
        fill(folder)

    def ensure(_: int) -> Path:
        return ensure_folder(tmp_path / "model", fill_when_all_wait, on_wait=waiting.release)

    with ThreadPoolExecutor(num_threads) as pool:
        folders = set(pool.map(ensure, range(num_threads)))
    assert folders == {tmp_path / "model"}
    assert len(fills) == 1
    assert visible(tmp_path) == ["model"]


def test_a_second_process_waits_for_the_first(tmp_path: Path) -> None:
    code = """
import pathlib, sys
from looseleaf.cached_folder import ensure_folder
def fill(folder):
    print("fill", flush=True)
    sys.stdin.readline()
    (folder / "weights").write_bytes(b"whole")
folder = ensure_folder(pathlib.Path(sys.argv[1]), fill, on_wait=lambda: print("wait", flush=True))
print((folder / "weights").read_text())
"""

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(tmp_path / "model")]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with start() as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "fill\n"
        with start() as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "wait\n"
            assert first.communicate("\n", timeout=60)[0] == "whole\n"
            assert second.communicate(timeout=60)[0] == "whole\n"


def test_waiting_ends(tmp_path: Path) -> None:
    def give_up(_folder: Path) -> None:
        with pytest.raises(CacheFolderUnavailable, match=r"held this lock for 0 s; LOOSELEAF_CACHE") as caught:
            ensure_folder(tmp_path / "model", refill, timeout_seconds=0)
        assert caught.value.path.endswith(".lock")
        fill(_folder)

    ensure_folder(tmp_path / "model", give_up)


def test_a_parent_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheFolderUnavailable, match="LOOSELEAF_CACHE names another") as caught:
        ensure_folder(tmp_path / "file" / "looseleaf" / "model", refill)
    assert caught.value.path.startswith(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"LOOSELEAF_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b"),
        ({"LOOSELEAF_CACHE": "~/b"}, "/home/ada/b"),
        ({"LOOSELEAF_CACHE": "", "XDG_CACHE_HOME": "/c"}, "/c/looseleaf"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/ada/.cache/looseleaf"),
        ({}, "/home/ada/.cache/looseleaf"),
    ],
)
def test_the_environment_names_the_root(variables: dict[str, str], root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOSELEAF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/ada"} | variables).items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(root)
