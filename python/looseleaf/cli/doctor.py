"""`looseleaf doctor`: what was found on this machine, which kernels will run, and why. Compiles nothing."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from looseleaf import __version__
from looseleaf.cached_folder import cache_root
from looseleaf.errors import LooseleafError
from looseleaf.machine.compiler import Compiler, CompilerUnavailable
from looseleaf.machine.cuda_driver import find_driver
from looseleaf.machine.cuda_toolkit import Toolkit, examine_homes
from looseleaf.machine.instruction_sets import all_sets, check_isa, chosen_sets, expected_set, processor_sets

__all__ = ["doctor"]

_SWITCHES = (
    "LOOSELEAF_KERNELS",
    "LOOSELEAF_ISA",
    "LOOSELEAF_SETS",
    "LOOSELEAF_CACHE",
    "LOOSELEAF_CHECK",
    "CXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """What was found; the names are those of the JSON document. None stands for what is not there."""

    looseleaf: str
    python: str
    torch: str | None
    torch_cuda: str | None
    torch_fault: str
    transformers: str | None
    compiler: str | None
    compiler_version: str
    instruction_sets: tuple[str, ...]
    switches: dict[str, str]
    cache: str
    cpu_kernels: dict[str, str]
    cuda_driver: str | None
    cuda_cards: tuple[str, ...]
    cuda_fault: str
    cuda_toolkits: dict[str, str]
    cuda_kernels: dict[str, str]


def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Print what was found (torch, compiler, processor, CUDA), which kernels will run, and why. Compiles nothing."""
    report = _report()
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        _print(report)


def _report() -> _Report:
    torch, torch_fault = _torch()
    cuda = None if torch is None else torch.version.cuda
    try:
        compiler, compiler_fault = Compiler.find(), ""
    except CompilerUnavailable as error:
        compiler, compiler_fault = None, str(error)
    driver = find_driver()
    return _Report(
        looseleaf=__version__,
        python=platform.python_version(),
        torch=None if torch is None else str(torch.__version__),
        torch_cuda=cuda,
        torch_fault=torch_fault,
        transformers=_installed("transformers"),
        compiler=None if compiler is None else " ".join(compiler.command),
        compiler_version=compiler_fault if compiler is None else compiler.version,
        instruction_sets=processor_sets(),
        switches={name: os.environ[name] for name in _SWITCHES if os.environ.get(name)},
        cache=_cache(),
        cpu_kernels=_no_kernels(torch_fault) if torch is None else _cpu_kernels(),
        cuda_driver=None if driver is None else _dotted(driver.cuda),
        cuda_cards=()
        if driver is None
        else tuple(f"{card.name} ({_dotted(card.capability)})" for card in driver.cards),
        cuda_fault="no driver" if driver is None else driver.fault,
        cuda_toolkits={
            str(home): f"CUDA {found.version}" if isinstance(found, Toolkit) else found
            for home, found in examine_homes(cuda).items()
        },
        cuda_kernels=_no_kernels(torch_fault) if torch is None else _cuda_kernels(),
    )


def _torch() -> tuple[Any, str]:
    """The module, or None and why."""
    try:
        import torch  # noqa: PLC0415 - it may be missing
    except ImportError as error:
        return None, f"torch cannot be imported: {error}"
    return torch, ""


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cache() -> str:
    try:
        return str(cache_root())
    except RuntimeError as error:
        return f"none: {error}"


def _no_kernels(reason: str) -> dict[str, str]:
    return {"source": "none", "place": "", "reason": reason}


def _cpu_kernels() -> dict[str, str]:
    """Where the library comes from, and which instruction sets it will use on this processor."""
    from looseleaf.ops import build  # noqa: PLC0415 - needs torch

    try:
        check_isa()
        outlook = build.foresee()
        held = all_sets() if outlook.source == "prebuilt" else chosen_sets()
    except LooseleafError as error:
        return _no_kernels(f"every call fails: {error}")
    names = {"set": "pytorch", "set_bfloat16": "pytorch"}
    if outlook.source != "none":
        names = {
            "set": expected_set(held, is_bfloat16=False) or "",
            "set_bfloat16": expected_set(held, is_bfloat16=True) or "",
        }
        if not all(names.values()):
            return _no_kernels(
                "every call fails: LOOSELEAF_ISA names a set that this processor or library does not have"
            )
    return asdict(outlook) | names


def _cuda_kernels() -> dict[str, str]:
    from looseleaf.ops import cuda_build  # noqa: PLC0415 - needs torch

    try:
        return asdict(cuda_build.foresee())
    except LooseleafError as error:
        return _no_kernels(f"every call fails: {error}")


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def _print(report: _Report) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))

    def add(name: str, *lines: str) -> None:
        table.add_row(name, Text("\n".join(line for line in lines if line), overflow="fold"))

    add("Looseleaf", report.looseleaf)
    add("Python", report.python)
    built = f", built with CUDA {report.torch_cuda}" if report.torch_cuda else ", built without CUDA"
    add("PyTorch", report.torch_fault or f"{report.torch}{built}")
    add("transformers", report.transformers or "not installed")
    add("C++ compiler", report.compiler or "none", report.compiler_version)
    add("instruction sets", ", ".join(report.instruction_sets))
    add(
        "switches",
        *(f"{name}={value}" for name, value in report.switches.items()),
        "" if report.switches else "none set",
    )
    add("cache folder", report.cache)
    cpu = report.cpu_kernels
    add("CPU kernels", _told(cpu), f"{cpu['set']}; for bf16 {cpu['set_bfloat16']}" if "set" in cpu else "")
    add("CUDA driver", f"supports CUDA {report.cuda_driver}" if report.cuda_driver else "none")
    add("CUDA cards", *report.cuda_cards or (report.cuda_fault,))
    toolkits = (f"{home}: {found}" for home, found in report.cuda_toolkits.items())
    add("CUDA toolkits", *toolkits if report.cuda_toolkits else ("none",))
    add("CUDA kernels", _told(report.cuda_kernels))
    Console(highlight=False).print(table)


def _told(kernels: dict[str, str]) -> str:
    """Where a library comes from, in words."""
    source, place, reason = (kernels[name] for name in ("source", "place", "reason"))
    words = {
        "prebuilt": f"prebuilt: {place}",
        "cache": f"in the cache: {place}",
        "compile": f"would be compiled at the first call, by {place}",
        "none": "none, the operators run in PyTorch",
    }
    if source == "none" and reason.startswith(("torch", "every call")):
        return f"none: {reason}"
    return f"{words[source]}; {reason}" if reason else words[source]
