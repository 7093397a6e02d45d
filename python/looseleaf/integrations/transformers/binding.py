"""What a model runs through while paged caches of it are open: its `forward` and its `generate`, wrapped.

A call without such a cache goes through unchanged. A forward pass with one runs with our attention function, and only
that pass: before and after it the model is as it was.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from functools import partial, wraps
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from looseleaf.errors import InvalidArgument, InvalidType, UnsupportedModel
from looseleaf.integrations.transformers.attention import check_attention
from looseleaf.integrations.transformers.forward import CACHE_ATTENTION_NAME
from looseleaf.integrations.transformers.switch import run_with_attention, turn
from looseleaf.integrations.transformers.versions import CACHE_ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import PreTrainedModel

    from looseleaf.integrations.transformers.switch import Windows

    Run = Callable[..., Any]

__all__ = ["Binding", "Bound", "bind"]

_MARK = "looseleaf_wrapped"
_LOCK = threading.RLock()  # one thread wraps or unwraps; again by the same one, which may meet a finalizer in between
_BINDINGS: weakref.WeakValueDictionary[int, Binding] = weakref.WeakValueDictionary()  # by id of the model


class Bound(Protocol):
    """What the wrapped methods ask of a cache."""

    def on_forward(
        self, model: PreTrainedModel, arguments: Mapping[str, Any], run: Callable[[Mapping[str, Any]], Any]
    ) -> Any:  # noqa: ANN401
        """Run a forward pass of a model over the cache."""

    def on_generate(self, arguments: Mapping[str, Any], run: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Check a prompt, then run its generation."""


class Binding:
    """Keeps the methods of a model wrapped for as long as it lives. Caches of one model share one."""

    __slots__ = ("__weakref__", "_model")

    def __init__(self, model: PreTrainedModel) -> None:
        """Wrap; users call `bind`."""
        self._model = weakref.ref(model)
        wrapped = [_wrap(model, name, around, weakref.ref(self)) for name, around in _AROUND.items()]
        weakref.finalize(self, _unwrap, self._model, wrapped)

    def is_of(self, model: PreTrainedModel) -> bool:
        """Whether this is the binding of that model."""
        return self._model() is model


def bind(model: PreTrainedModel) -> Binding:
    """The binding of a model, a new one if it has none.

    Raises:
        InvalidType: no transformers model.
        InvalidArgument: the model is not in eval mode.
        UnsupportedModel: it computes its attention itself, has layers that see other tokens than all or the nearest, or
            keeps a second cache for cross-attention.
    """
    if not hasattr(model, "config") or not hasattr(model, "generate"):
        raise InvalidType(f"model has type {type(model).__name__}, must be a transformers model that generates")
    if model.training:
        raise InvalidArgument("model must be in eval mode; call model.eval() first")
    check_attention(model)
    if getattr(model.config, "add_cross_attention", False):
        raise UnsupportedModel(
            f"{type(model).__name__} has add_cross_attention: it keeps a second cache, for an encoder's output"
        )
    with _LOCK:
        binding = _BINDINGS.get(id(model))
        if binding is None or not binding.is_of(model):
            binding = _BINDINGS[id(model)] = Binding(model)
    return binding


def _forward(model: PreTrainedModel, run: Run, args: tuple[Any, ...], options: dict[str, Any]) -> Any:  # noqa: ANN401
    cache = _cache_in(args, options)
    if cache is None:
        with turn(model):  # not while another thread's pass has our attention
            return run(*args, **options)
    arguments = _named(type(model).forward, model, args, options)

    def run_cache(windows: Windows) -> Any:  # noqa: ANN401
        def checked_run(arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
            output = run(**arguments)
            windows.check(model)
            return output

        return cache.on_forward(model, arguments, checked_run)

    return run_with_attention(model, CACHE_ATTENTION_NAME, run_cache)


def _generate(model: PreTrainedModel, run: Run, args: tuple[Any, ...], options: dict[str, Any]) -> Any:  # noqa: ANN401
    cache = _cache_in(args, options)
    if cache is None:
        return run(*args, **options)
    return cache.on_generate(_named(type(model).generate, model, args, options), partial(run, *args, **options))


_AROUND = {"forward": _forward, "generate": _generate}


def _cache_in(args: tuple[Any, ...], options: Mapping[str, Any]) -> Bound | None:
    """The paged cache among the arguments of a call.

    Raises:
        InvalidArgument: there is another cache beside it.
    """
    named = [options[name] for name in CACHE_ARGUMENTS if options.get(name) is not None]
    paged: list[Bound] = [value for value in (*named, *args) if hasattr(value, "on_forward")]
    if paged and any(other is not paged[0] for other in (*named, *paged)):
        raise InvalidArgument(f"two caches are given by {' and '.join(CACHE_ARGUMENTS)}, which mean the same argument")
    return paged[0] if paged else None


def _named(function: Run, model: PreTrainedModel, args: tuple[Any, ...], options: dict[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call by their names."""
    if not args:
        return options
    signature = inspect.signature(function)
    _, *bound = signature.bind_partial(model, *args, **options).arguments.items()
    named: dict[str, Any] = {}
    for name, value in bound:
        is_rest = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        named |= value if is_rest else {name: value}
    return named


class _Wrapped(NamedTuple):
    """A method of a model, and what stood in the instance before."""

    name: str
    method: Any
    before: Any


def _wrap(model: PreTrainedModel, name: str, around: Callable[..., Any], binding: weakref.ref[Binding]) -> _Wrapped:
    """Put a method of our own before one of the model's."""
    before = vars(model).get(name)
    while (inner := _wrapped(before)) is not None:
        before = inner.before  # its binding has ended in another thread just now, or is of what the model is a copy of
    original = getattr(type(model), name)

    @wraps(original)
    def method(self: PreTrainedModel, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        run = partial(original, self) if before is None else before
        alive = binding()
        if alive is None or not alive.is_of(self):
            return run(*args, **options)  # left inside a wrapper of somebody else, or copied with the model
        return around(self, run, args, options)

    wrapped = _Wrapped(name, method, before)
    setattr(method, _MARK, wrapped)
    setattr(model, name, MethodType(method, model))  # bound to the instance, so that a copy of the model is its own
    return wrapped


def _wrapped(method: object) -> _Wrapped | None:
    """What a method of an instance is to us, if it is one of ours and not only marked like one."""
    function = getattr(method, "__func__", None)
    wrapped: _Wrapped | None = getattr(function, _MARK, None)
    return wrapped if wrapped is not None and wrapped.method is function else None


def _unwrap(model_reference: weakref.ref[PreTrainedModel], wrapped: list[_Wrapped]) -> None:
    model = model_reference()
    if model is None:
        return
    with _LOCK:
        for ours in wrapped:
            if _wrapped(vars(model).get(ours.name)) is not ours:
                continue  # somebody has wrapped it again; what is inside passes every call on
            if ours.before is None:
                delattr(model, ours.name)
            else:
                setattr(model, ours.name, ours.before)
