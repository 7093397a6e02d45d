"""The compiled CPU library: loaded at the first call that needs it, once for each process.

`native_first` stands before every PyTorch implementation: where the arguments are CPU tensors, it loads the library and
calls the operator again, which then reaches the library's kernel. Without a library it says so once and goes on.
"""

from __future__ import annotations

import ctypes
import threading
import warnings
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from looseleaf.errors import InvalidArgument
from looseleaf.machine.instruction_sets import check_isa
from looseleaf.ops import build, cuda_native
from looseleaf.ops.checks import check_dense, check_no_grad
from looseleaf.ops.library_cache import PREBUILT, KernelsUnavailable, mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["REFUSALS", "accepts", "grad_refused", "is_loaded", "kernel_name", "load", "native_first", "raise_refusal"]

REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)
"""What a call of an operator raises where an argument is wrong, before anything is written."""

_NO_MEMORY = ("allocate memory", "out of memory", "bad_alloc")
"""Words of PyTorch's allocators, which raise a RuntimeError too."""

_ELEMENTS = {
    torch.float32: 0,
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
    torch.int8: 5,
}


class _State:
    """What this process has loaded."""

    __slots__ = ("library", "lock", "was_tried")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.was_tried = False
        self.library: ctypes.CDLL | None = None


_STATE = _State()


def is_loaded() -> bool:
    """Whether the operators run in the compiled library on CPU tensors.

    >>> is_loaded() in (True, False)
    True
    """
    return _STATE.library is not None


def load() -> bool:
    """Load the library if that was not tried before; compile it where it is not there.

    Returns:
        Whether it is loaded. Where it is not, a `RuntimeWarning` has said why, once.

    Raises:
        InvalidArgument: `LOOSELEAF_KERNELS` or `LOOSELEAF_ISA` has a value that means nothing.
    """
    if _STATE.was_tried:
        return is_loaded()
    with _STATE.lock:
        if not _STATE.was_tried:
            chosen = mode()
            check_isa()
            try:
                if chosen != "none":
                    _STATE.library = _open()
                    _check_forced(_STATE.library)
            except KernelsUnavailable as error:
                _STATE.was_tried = True
                warnings.warn(str(error), RuntimeWarning, stacklevel=2)
            _STATE.was_tried = True
    return is_loaded()


def kernel_name(cache_dtype: torch.dtype) -> str:
    """Which kernels a call on CPU caches of this dtype runs: the instruction set, or `pytorch`.

    Loads the library as a call would.

    Raises:
        InvalidArgument: LOOSELEAF_ISA names a set that the library or the processor lacks, or no operator takes caches
            of this dtype.

    >>> isinstance(kernel_name(torch.bfloat16), str)
    True
    """
    if cache_dtype not in _ELEMENTS:
        raise InvalidArgument(f"cache_dtype must be one of {', '.join(map(str, _ELEMENTS))}, was {cache_dtype}")
    if not load() or _STATE.library is None:
        return "pytorch"
    name = _STATE.library.looseleaf_kernel_name(_ELEMENTS[cache_dtype])
    if name is None:
        raise InvalidArgument("LOOSELEAF_ISA names kernels that this processor or library does not have")
    return str(name.decode())


def accepts(*tensors: Any) -> bool:  # noqa: ANN401 - what a user passed
    """Whether the compiled library can take a call with these tensors (None counts for nothing) and check it itself."""
    if _STATE.library is None or torch.compiler.is_compiling():  # what is traced never meets the library's checks
        return False
    try:
        for tensor in tensors:
            if tensor is not None and not tensor.is_cpu:
                return False
    except AttributeError:  # no tensor at all
        return False
    return True


def raise_refusal(refusal: Exception | None) -> None:
    """Raise what the library refused and the checks in Python let pass.

    Raises:
        InvalidArgument: with the library's words, if there was a refusal. Where memory was short, no argument is
            wrong: what PyTorch's allocator raised stays as it is.
    """
    if refusal is None:
        return
    if any(words in str(refusal) for words in _NO_MEMORY):
        raise refusal
    raise InvalidArgument(str(refusal)) from refusal


def native_first(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """An implementation of the operator `name` that lets a library go first, that of CUDA where a tensor is there.

    Once such a library is loaded, the dispatcher goes there by itself and this is called no more.
    """
    names = tuple(signature(function).parameters)

    @wraps(function)
    def run(*arguments: object, **options: object) -> object:
        tensors = dict(_named_tensors((*zip(names, arguments, strict=False), *options.items())))
        for tensor_name, tensor in tensors.items():
            check_dense(tensor_name, tensor)  # a sparse one would come here again and again
        if all(tensor.is_cpu for tensor in tensors.values()) and load():
            return getattr(torch.ops.looseleaf, name)(*arguments, **options)
        if any(tensor.is_cuda for tensor in tensors.values()) and cuda_native.load():
            return getattr(torch.ops.looseleaf, name)(*arguments, **options)
        check_no_grad(**tensors)
        return function(*arguments, **options)

    return run


def grad_refused(function: Callable[..., Any], shapes: Callable[..., Any]) -> Callable[..., Any]:
    """The shapes of what `function` returns, for graphs: there the operator itself never sees what requires grad."""
    names = tuple(signature(function).parameters)

    def trace(*arguments: object, **options: object) -> object:
        check_no_grad(**dict(_named_tensors((*zip(names, arguments, strict=False), *options.items()))))
        return shapes(*arguments, **options)

    return trace


def _named_tensors(arguments: Iterable[tuple[str, object]]) -> Iterable[tuple[str, Tensor]]:
    for name, value in arguments:
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from _named_tensors((f"{name}[{index}]", part) for index, part in enumerate(value))


def _open() -> ctypes.CDLL:
    """The library, its operators registered."""
    prebuilt = PREBUILT / build.LIBRARY_NAME
    kept = None if prebuilt.is_file() else build.kept()
    path = prebuilt if kept is None else kept.make()
    try:
        library = _loaded(path)
    except OSError as error:
        again = None if kept is None else kept.make_again(path)
        if again is None:
            raise build.CpuKernelsUnavailable(f"{path} cannot be loaded: {error}") from error
        try:
            library = _loaded(again)
        except OSError as second:
            raise build.CpuKernelsUnavailable(f"{again} cannot be loaded: {second}") from second
    library.looseleaf_kernel_name.restype = ctypes.c_char_p
    library.looseleaf_kernel_name.argtypes = [ctypes.c_int32]
    library.looseleaf_force_kernels.restype = None
    library.looseleaf_force_kernels.argtypes = [ctypes.c_char_p]
    return library


def _check_forced(library: ctypes.CDLL) -> None:
    if library.looseleaf_kernel_name(0) is None:
        raise InvalidArgument("LOOSELEAF_ISA names kernels that this processor or library does not have")


def _loaded(path: Path) -> ctypes.CDLL:
    torch.ops.load_library(path)  # type: ignore[no-untyped-call]
    return ctypes.CDLL(str(path))
