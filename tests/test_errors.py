from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from looseleaf import errors
from looseleaf.errors import LooseleafError

CLASSES = [getattr(errors, name) for name in errors.__all__]
VALUES = {"int": 7, "str": "a value"}


def example(error_class: type[LooseleafError]) -> LooseleafError:
    """An instance with a value for each parameter; a class without a constructor of its own takes a text."""
    if "__init__" not in vars(error_class):
        return error_class("tokens is -1, must be 0 or more")
    parameters = list(inspect.signature(error_class).parameters.values())
    return error_class(*(VALUES[parameter.annotation] for parameter in parameters))


def test_every_error_class_is_exported() -> None:
    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert len(defined) > 10
    assert defined == set(errors.__all__)
    assert all(issubclass(error_class, LooseleafError) for error_class in CLASSES)


@pytest.mark.parametrize("error_class", CLASSES)
@pytest.mark.parametrize("duplicate", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])  # noqa: S301
def test_errors_survive_pickling_and_copying(error_class: type[LooseleafError], duplicate: object) -> None:
    assert callable(duplicate)
    error = example(error_class)
    again = duplicate(error)
    assert (type(again), str(again), vars(again), again.args) == (error_class, str(error), vars(error), error.args)


@pytest.mark.parametrize("error_class", [error_class for error_class in CLASSES if "__init__" in vars(error_class)])
def test_errors_keep_their_values_and_say_them(error_class: type[LooseleafError]) -> None:
    error = example(error_class)
    names = list(inspect.signature(error_class).parameters)
    assert vars(error).keys() == set(names)
    assert all(str(value) in str(error) for value in vars(error).values())
    assert [name for name in names if f"{name}:" not in (error_class.__doc__ or "")] == []


def test_errors_about_arguments_are_value_or_type_errors() -> None:
    assert issubclass(errors.InvalidArgument, ValueError)
    assert issubclass(errors.InvalidType, TypeError)
    assert not issubclass(errors.OutOfBlocks, ValueError)
