"""The compiled CUDA library: loaded at the first call on CUDA tensors, once for each process.

A PyTorch without CUDA never gets here: nothing is looked for, compiled or loaded.
"""

from __future__ import annotations

import threading
import warnings

import torch

from looseleaf.ops import build, cuda_build

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
        Whether it is loaded. Where it is not though PyTorch has CUDA, a `RuntimeWarning` has said why, once.

    Raises:
        InvalidArgument: `LOOSELEAF_KERNELS` has a value that means nothing.
    """
    if torch.version.cuda is None:
        return False
    with _STATE.lock:
        if not _STATE.was_tried and build.mode() != "none":
            _STATE.was_tried = True
            try:
                path = cuda_build.build_library()
                torch.ops.load_library(path)  # type: ignore[no-untyped-call]
                _STATE.is_loaded = True
            except (build.KernelsUnavailable, OSError) as error:
                warnings.warn(str(error), RuntimeWarning, stacklevel=2)
    return _STATE.is_loaded
