from __future__ import annotations

import importlib
import pkgutil
from types import FunctionType
from typing import TYPE_CHECKING

import looseleaf

if TYPE_CHECKING:
    from types import ModuleType


def modules() -> list[ModuleType]:
    names = [info.name for info in pkgutil.walk_packages(looseleaf.__path__, "looseleaf.")]
    found = [importlib.import_module(name) for name in names if not name.endswith(".__main__")]
    assert len(found) > 20
    return found


def test_every_public_name_can_be_imported() -> None:
    assert len(looseleaf.__all__) > 10
    assert [name for name in looseleaf.__all__ if not hasattr(looseleaf, name)] == []
    assert set(dir(looseleaf)) == set(looseleaf.__all__)


def test_every_module_has_the_names_that_it_exports() -> None:
    missing = [
        f"{module.__name__}.{name}"
        for module in modules()
        for name in getattr(module, "__all__", ())
        if not hasattr(module, name)
    ]
    assert missing == []


def test_every_public_class_and_function_is_documented() -> None:
    objects = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in modules()
        if module.__name__ != "looseleaf._core"  # documented in the Python classes around it
        for name in getattr(module, "__all__", ())
    }
    undocumented = [
        name
        for name, value in objects.items()
        if isinstance(value, type | FunctionType) and not (value.__doc__ or "").strip()
    ]
    assert len(objects) > 30
    assert undocumented == []
