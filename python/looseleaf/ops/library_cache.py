"""Compiled libraries of kernels: where one comes from, and the cache that keeps what was compiled here.

The name of a folder in the cache is a hash of what the library is made from, and one of the tools that make it, so a
change of either makes another library. Where there are no tools, or none may be used, any tools' library will do.

Environment variables:
    LOOSELEAF_KERNELS: `compile` (the default) does all of the above; `prebuilt` never compiles, but takes a library
        that is there; `none` takes no library: the operators run in PyTorch.
    LOOSELEAF_CACHE: the cache folder, see `looseleaf.cached_folder`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from looseleaf.cached_folder import MANIFEST, cache_root, ensure_folder, is_whole
from looseleaf.errors import CacheFolderUnavailable, InvalidArgument, LooseleafError
from looseleaf.machine.compiler import CompilerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PREBUILT", "KeptLibrary", "KernelsUnavailable", "Outlook", "Tools", "mode"]

PREBUILT = Path(__file__).parents[1] / "_kernels"
"""Where wheels carry libraries."""

_LOCK_TIMEOUT_SECONDS = 900.0


class KernelsUnavailable(LooseleafError):
    """There is no library of kernels, and none can be made; the text says why and what to do.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Tools(Protocol):
    """What compiles a library."""

    def key(self) -> str:
        """Differs between tools and their versions."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Where a first call would take a library from; `none` leaves the operators to PyTorch.

    Attributes:
        source: that.
        place: the library, or the tools that would compile it.
        reason: why nothing better serves; empty where there is nothing to say.
    """

    source: Literal["prebuilt", "cache", "compile", "none"]
    place: str = ""
    reason: str = ""


def mode() -> str:
    """The value of LOOSELEAF_KERNELS.

    Raises:
        InvalidArgument: another value than `compile`, `prebuilt` and `none`.

    >>> mode() in ("compile", "prebuilt", "none")
    True
    """
    chosen = os.environ.get("LOOSELEAF_KERNELS") or "compile"
    if chosen not in ("compile", "prebuilt", "none"):
        raise InvalidArgument(f"LOOSELEAF_KERNELS must be compile, prebuilt or none, was {chosen!r}")
    return chosen


_ToolsType = TypeVar("_ToolsType", bound=Tools)


@dataclass(frozen=True, slots=True)
class KeptLibrary(Generic[_ToolsType]):
    """A library that is compiled once and kept in the cache.

    Attributes:
        name: of its folder, without the part of the tools.
        file_name: its own.
        title: what is compiled, for the line on stderr.
        find_tools: finds what compiles it, or raises `KernelsUnavailable` or `CompilerUnavailable`.
        compile: writes the library at a path with these tools, and what else belongs beside it.
        unavailable: the class of what `make` raises.
    """

    name: str
    file_name: str
    title: str
    find_tools: Callable[[], _ToolsType]
    compile: Callable[[Path, _ToolsType], None]
    unavailable: type[KernelsUnavailable]

    def look(self) -> Path | _ToolsType:
        """The library in the cache, or the tools that would make it; nothing is compiled.

        Raises:
            KernelsUnavailable: neither is there, or LOOSELEAF_KERNELS forbids to compile.
        """
        root = _root()
        try:
            tools = self._allowed_tools()
        except KernelsUnavailable:
            folder = None if root is None else self._made_by_any(root)
            if folder is None:
                raise
            return folder / self.file_name
        if root is not None and is_whole(self._folder(root, tools)):
            return self._folder(root, tools) / self.file_name
        return tools

    def make(self) -> Path:
        """The library, compiled now where it is not in the cache.

        Returns:
            Its path: in the cache, or in a temporary folder, removed at exit, where the cache cannot be written.

        Raises:
            KernelsUnavailable: no tools, tools that fail, or LOOSELEAF_KERNELS forbids to compile.
        """
        found = self.look()
        if isinstance(found, Path):
            return found
        root = _root()
        if root is None:
            return self._make_for_this_process("there is no home directory to keep them in", found)
        try:
            folder = ensure_folder(
                self._folder(root, found),
                lambda new: self._fill(new, found),
                on_wait=lambda: _report(f"another process compiles {self.title}: waiting for it"),
                timeout_seconds=_LOCK_TIMEOUT_SECONDS,
            )
        except CacheFolderUnavailable as error:
            return self._make_for_this_process(str(error), found)
        return folder / self.file_name

    def make_again(self, library: Path) -> Path | None:
        """Compile a library anew that cannot be loaded: its size was right, its bytes were not.

        Args:
            library: from `make`.

        Returns:
            The new library's path; None where it cannot be put aside.
        """
        try:
            library.with_name(MANIFEST).unlink()  # a folder without one is made again by the one who holds the lock
        except OSError:
            return None
        return self.make()

    def _folder(self, root: Path, tools: _ToolsType) -> Path:
        return root / f"{self.name}-{tools.key()}"

    def _allowed_tools(self) -> _ToolsType:
        if mode() != "compile":
            raise self.unavailable(
                f"LOOSELEAF_KERNELS={mode()} forbids to compile, and {self.name} is not in the cache"
            )
        try:
            return self.find_tools()
        except CompilerUnavailable as error:
            raise self.unavailable(str(error)) from error

    def _made_by_any(self, root: Path) -> Path | None:
        """A whole folder of this name, whichever tools filled it; the one that was made last."""
        try:
            folders = [folder for folder in root.glob(f"{self.name}-*") if is_whole(folder)]
            return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)
        except OSError:
            return None

    def _make_for_this_process(self, reason: str, tools: _ToolsType) -> Path:
        _report(f"{reason}; this process compiles for itself")
        temporary = Path(tempfile.mkdtemp(prefix="looseleaf-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        self._fill(temporary, tools)
        return temporary / self.file_name

    def _fill(self, folder: Path, tools: _ToolsType) -> None:
        _report(f"compiling {self.title}, once; this takes a while")
        start = time.monotonic()
        try:
            self.compile(folder / self.file_name, tools)
        except CompilerUnavailable as error:
            raise self.unavailable(str(error)) from error
        _report(f"compiled in {time.monotonic() - start:.1f} s")


def _root() -> Path | None:
    try:
        return cache_root()
    except RuntimeError:  # there is no home
        return None


def _report(text: str) -> None:
    print(f"looseleaf: {text}", file=sys.stderr, flush=True)  # noqa: T201 - progress of a step that takes seconds
