"""`looseleaf bench`: figures of this machine, each beside its baseline in the same run."""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from looseleaf.cli.device import check_device
from looseleaf.cli.figures import draw, show_json, show_tables
from looseleaf.errors import InvalidArgument, MissingPackage

if TYPE_CHECKING:
    from looseleaf.bench import Measurement, Settings

__all__ = ["bench"]


class _Subject(StrEnum):
    allocator = "allocator"
    attention = "attention"
    engine = "engine"


def bench(
    subject: Annotated[_Subject, typer.Argument(help="What to measure.")],
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller cases, fewer repeats.")] = False,
    real: Annotated[bool, typer.Option("--real", help="With engine: SmolLM2-135M instead of random weights.")] = False,
    device: Annotated[
        str | None,
        typer.Option(help="With engine: where the model runs, such as cuda.", show_default="cpu"),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, writable=True, help="Also draw the figures into this PNG file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Measure the allocator, attention or the engine, each beside its baseline; medians, tokens and values checked.

    Beside the allocator: tables built from Python lists.

    Beside attention: PyTorch's, on contiguous and on gathered keys and values.

    Beside the engine: generate() of transformers, one by one and in a padded batch. In a checkout benches/serving.py
    compares it with transformers' continuous batching.
    """
    for option, is_there in {"--real": real, "--device": device is not None}.items():
        if is_there and subject is not _Subject.engine:
            raise typer.BadParameter(f"{option} is for engine")
    if plot is not None:
        _check_plot(plot)
    if device is not None:
        check_device(device)
    from looseleaf.bench.measure import Settings, machine  # noqa: PLC0415 - for a faster start

    settings = Settings(repeats=3, is_quick=True) if quick else Settings()
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(f"measuring {subject.value} ...", style="dim")
    rows = _run(subject, settings, real=real, device=device or "cpu")
    if as_json:
        show_json(rows, machine(), subject=subject.value)
    else:
        show_tables(rows, machine())
    if plot is not None:
        try:
            draw(rows, plot)
        except OSError as error:
            raise InvalidArgument(f"--plot {plot}: {error.strerror or error}") from error


def _run(subject: _Subject, settings: Settings, *, real: bool, device: str) -> list[Measurement]:
    if subject is _Subject.allocator:
        from looseleaf.bench import allocator  # noqa: PLC0415

        return allocator.run(settings)
    if subject is _Subject.attention:
        from looseleaf.bench import attention  # noqa: PLC0415 - takes seconds

        return attention.run(settings)
    from looseleaf.bench import engine  # noqa: PLC0415 - takes seconds
    from looseleaf.integrations.transformers.smollm2 import load_smollm2  # noqa: PLC0415

    model = load_smollm2("float32")[0] if real else engine.random_model()
    return engine.run(settings, model=model.to(device))


def _check_plot(path: Path) -> None:
    """Refuse what could not be drawn once everything is measured."""
    if path.suffix.lower() != ".png":
        raise typer.BadParameter(f"--plot must end in .png, not {path.name!r}")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"--plot {path}: there is no folder {path.parent}")
    try:
        is_missing = find_spec("matplotlib") is None
    except ValueError:  # hidden on purpose
        is_missing = True
    if is_missing:
        raise MissingPackage("matplotlib", "pip install matplotlib")
