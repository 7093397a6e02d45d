"""Folders in the user's cache that are whole or not there.

A folder is filled under a name of its own and renamed when it is complete, so a crash leaves a leftover and never half
a folder under the final name. The last file written is a manifest of all names and sizes; a folder that disagrees with
it is made again. A lock file beside the folder makes processes and threads wait for the one that fills it.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from looseleaf.errors import CacheFolderUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MANIFEST", "cache_root", "ensure_folder", "is_whole"]

MANIFEST = "manifest.json"


def cache_root() -> Path:
    """The folder that holds everything that Looseleaf keeps between runs; it may not exist yet.

    The environment variable `LOOSELEAF_CACHE` names it. Without it, it is `looseleaf` in `XDG_CACHE_HOME`, and without
    that (or if that is not an absolute path) `~/.cache/looseleaf`.

    >>> cache_root().is_absolute()
    True
    """
    chosen = os.environ.get("LOOSELEAF_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "looseleaf"


def is_whole(folder: Path) -> bool:
    """Whether a folder holds every file that it was completed with, each in its size.

    >>> is_whole(Path("/no/such/folder"))
    False
    """
    try:
        sizes = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return bool(sizes) and all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def ensure_folder(
    folder: Path,
    fill: Callable[[Path], None],
    *,
    on_wait: Callable[[], None] | None = None,
    timeout_seconds: float = 600.0,
) -> Path:
    """Return a whole folder: the one that is there, or a new one.

    Args:
        folder: where it shall be.
        fill: writes the files into the empty folder that it is given. What it raises is raised here, and nothing stays.
        on_wait: called once if another thread or process is filling the folder.
        timeout_seconds: how long to wait for that one.

    Returns:
        `folder`.

    Raises:
        CacheFolderUnavailable: the folder's parent cannot be written, or the other process did not finish in time.

    >>> import tempfile
    >>> root = tempfile.TemporaryDirectory()
    >>> folder = ensure_folder(Path(root.name) / "greeting", lambda new: (new / "text").write_text("hello"))
    >>> (folder / "text").read_text(), is_whole(folder)
    ('hello', True)
    >>> root.cleanup()
    """
    if is_whole(folder):
        return folder
    with _writable(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent / f".{folder.name}.lock", on_wait, timeout_seconds):
        if not is_whole(folder):
            _replace(folder, fill)
    return folder


def _replace(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a new folder and put it in place of whatever is there; the lock is held, so every leftover is dead."""
    partial = folder.with_name(f".{folder.name}.partial")
    broken = folder.with_name(f".{folder.name}.broken")
    with _writable(folder.parent):
        _remove(partial)
        partial.mkdir()
    try:
        fill(partial)
        with _writable(folder.parent):
            files = sorted(path for path in partial.rglob("*") if path.is_file())
            sizes = {path.relative_to(partial).as_posix(): path.stat().st_size for path in files}
            (partial / MANIFEST).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
            _remove(broken)
            if os.path.lexists(folder):
                folder.rename(broken)
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(broken, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None] | None, timeout_seconds: float) -> Iterator[None]:
    from filelock import FileLock, Timeout  # noqa: PLC0415 - it comes with torch, and a whole folder needs neither

    lock = FileLock(path)
    with _writable(path):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if on_wait is not None:
                on_wait()
            try:
                lock.acquire(timeout=timeout_seconds)
            except Timeout:
                reason = f"another process has held this lock for {timeout_seconds:g} s"
                raise CacheFolderUnavailable(str(path), reason) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheFolderUnavailable(error.filename or str(path), error.strerror or str(error)) from error
