"""The device that a user names, checked before a model is loaded."""

from __future__ import annotations

import typer

from looseleaf.errors import InvalidArgument

__all__ = ["check_device"]


def check_device(name: str) -> None:
    """Refuse a device that torch does not know, or cannot compute on here.

    Raises:
        typer.BadParameter: it is the name of no device.
        InvalidArgument: this machine or this torch does not have it.
    """
    import torch  # noqa: PLC0415 - takes seconds

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise typer.BadParameter(f"--device {name}: {error}") from error
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # what torch raises depends on the device
        reason = str(error).partition("\n")[0]
        raise InvalidArgument(f"--device {name}: torch cannot compute on it here: {reason}") from error
