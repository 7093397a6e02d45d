"""The compiled CUDA library: loaded at the first call on CUDA tensors, once for each process.

A PyTorch without CUDA never gets here: nothing is looked for, compiled or loaded.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

import torch

from looseleaf.machine.cuda_driver import find_driver
from looseleaf.ops import cuda_build
from looseleaf.ops.cuda_prebuilt import find_prebuilt
from looseleaf.ops.library_cache import KernelsUnavailable, mode

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_loaded", "load"]


class _State:
    """What this process has loaded."""

    __slots__ = ("is_loaded", "lock", "was_tried")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.was_tried = False
        self.is_loaded = False


_STATE = _State()


def is_loaded() -> bool:
    """Whether the operators run in the compiled library on CUDA tensors.

    >>> is_loaded() in (True, False)
    True
    """
    return _STATE.is_loaded


def load() -> bool:
    """Load the library if that was not tried before; compile it where it is not there.

    Returns:
        Whether it is loaded. Where it is not though PyTorch has CUDA, a `RuntimeWarning` has said why, once: what is
        wrong with the prebuilt library, and with each toolkit.

    Raises:
        InvalidArgument: `LOOSELEAF_KERNELS` has a value that means nothing.
    """
    if torch.version.cuda is None:
        return False
    with _STATE.lock:
        if not _STATE.was_tried and mode() != "none":
            _STATE.was_tried = True
            try:
                _open()
                _STATE.is_loaded = True
            except KernelsUnavailable as error:
                warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    return _STATE.is_loaded


def _open() -> None:
    prebuilt, fault = find_prebuilt(find_driver())
    if fault is None:
        try:
            _load(prebuilt)
        except OSError as error:
            fault = f"cannot be loaded: {error}"
        else:
            return
    try:
        _open_kept()
    except KernelsUnavailable as error:
        raise cuda_build.CudaKernelsUnavailable(f"the prebuilt library {fault}; {error.reason}") from error


def _open_kept() -> None:
    kept = cuda_build.kept()
    library = kept.make()
    try:
        _load(library)
    except OSError as error:
        again = kept.make_again(library)
        if again is None:
            raise cuda_build.CudaKernelsUnavailable(f"{library} cannot be loaded: {error}") from error
        try:
            _load(again)
        except OSError as second:
            raise cuda_build.CudaKernelsUnavailable(f"{again} cannot be loaded: {second}") from second


def _load(library: Path) -> None:
    torch.ops.load_library(library)  # type: ignore[no-untyped-call]
