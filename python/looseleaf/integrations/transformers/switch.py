"""Which attention a model runs with: a setting of its config, which all threads and all who wrap the model share.

It is ours inside one forward pass, and as before after it. Passes of one config that need another setting wait for each
other. While it is ours, the windows that the model's masks hide keys behind are written down beside those that its
layers name, for a window that only a mask knows would be lost: we make no masks.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, TypeVar

from looseleaf.errors import UnsupportedModel
from looseleaf.integrations.transformers.versions import text_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

__all__ = ["SETTING", "Windows", "note_mask", "note_window", "run_with_attention", "turn"]

SETTING = "_attn_implementation_internal"
"""Where a config keeps it: `set_attn_implementation` would walk through all modules, and set the parts of a multimodal
model alike."""

_T = TypeVar("_T")


class Windows:
    """What one forward pass said of windows, in keys that a token sees.

    Attributes:
        of_masks: those that masks were asked for.
        of_layers: those that layers attended with; None: all keys.
    """

    __slots__ = ("of_layers", "of_masks")

    def __init__(self) -> None:
        self.of_masks: set[int] = set()
        self.of_layers: set[int | None] = set()

    def check(self, model: PreTrainedModel) -> None:
        """Refuse a model whose masks have a window of which no layer knows.

        Raises:
            UnsupportedModel: it has.
        """
        layer_types = getattr(text_config(model), "layer_types", None)
        if layer_types and "sliding_attention" not in layer_types:
            return  # the mask was made, and no layer takes it
        lost = self.of_masks - self.of_layers
        if lost:
            raise UnsupportedModel(
                f"{type(model).__name__} hides keys out of a window of {min(lost)} by a mask alone: its layers do not "
                "hand sliding_window to their attention"
            )


class _Current(threading.local):
    windows: Windows | None = None


_CURRENT = _Current()
_LOCKS: dict[int, threading.RLock] = {}


def turn(model: PreTrainedModel) -> threading.RLock:
    """The lock of a model's setting; one thread may take it again. Models that share a config share it."""
    config = model.config.get_text_config(decoder=True)
    found = _LOCKS.get(id(config))
    if found is None:
        found = _LOCKS.setdefault(id(config), threading.RLock())
        weakref.finalize(config, _LOCKS.pop, id(config), None)
    return found


def run_with_attention(model: PreTrainedModel, name: str, run: Callable[[Windows], _T]) -> _T:
    """Run a pass while the layers that fill the cache attend by a registered function; they attend as before after it.

    Other parts of a multimodal model, such as its vision tower, keep their attention. Other threads wait.

    No context manager of Python's own, and no assignment to the config, which checks what it is given: an interrupt in
    the middle of either would leave the setting ours, or the lock taken.
    """
    settings = vars(text_config(model))
    with turn(model):
        before, outer = settings.get(SETTING), _CURRENT.windows
        try:
            settings[SETTING] = name
            windows = _CURRENT.windows = Windows()
            return run(windows)
        finally:
            settings[SETTING] = before
            _CURRENT.windows = outer


def note_mask(window: int | None) -> None:
    """Write down that a mask was asked for, with a window or without."""
    if _CURRENT.windows is not None and window is not None:
        _CURRENT.windows.of_masks.add(window)


def note_window(window: int | None) -> None:
    """Write down that a layer attends, with a window or without."""
    if _CURRENT.windows is not None:
        _CURRENT.windows.of_layers.add(window)
