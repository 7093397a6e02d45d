"""The CUDA driver of this machine and the cards that it shows, asked by its own interface, without PyTorch.

Asking for the version needs no card. CUDA_VISIBLE_DEVICES counts, as everywhere.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

__all__ = ["Card", "Driver", "find_driver"]

_LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


@dataclass(frozen=True, slots=True)
class Card:
    """A card and its compute capability, `(9, 0)` for 9.0."""

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Driver:
    """An installed driver.

    Attributes:
        cuda: the newest CUDA that it supports, `(13, 0)` for 13.0.
        cards: those that it shows to this process.
        fault: why it shows none; empty where it does.
    """

    cuda: tuple[int, int]
    cards: tuple[Card, ...]
    fault: str = ""


def find_driver() -> Driver | None:
    """The driver with its cards; None where there is none, or one that does not answer.

    >>> driver = find_driver()
    >>> driver is None or driver.cuda > (0, 0)
    True
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
        version = ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
        cards, fault = _cards(library)
    except (OSError, AttributeError):
        return None
    return Driver(divmod(version.value // 10, 100), cards, fault)


def _cards(library: ctypes.CDLL) -> tuple[tuple[Card, ...], str]:
    error = library.cuInit(0)
    count = ctypes.c_int()
    error = error or library.cuDeviceGetCount(ctypes.byref(count))
    if error != 0:
        text = ctypes.c_char_p()
        library.cuGetErrorString(error, ctypes.byref(text))
        return (), text.value.decode() if text.value else f"error {error}"
    return tuple(_card(library, ordinal) for ordinal in range(count.value)), "" if count.value else "no card"


def _card(library: ctypes.CDLL, ordinal: int) -> Card:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), ordinal)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    library.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return Card(name.value.decode(errors="replace"), (major.value, minor.value))
