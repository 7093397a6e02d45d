"""The command line. This file imports neither typer nor rich, so that it can say that they are missing."""

from __future__ import annotations

import sys

__all__ = ["main"]

_PACKAGES = ("typer", "rich")


def main() -> None:
    """Run `looseleaf` on the arguments of the process.

    Raises:
        SystemExit: always; 0 = done, 1 = could not, 2 = wrong usage.
    """
    try:
        import rich  # noqa: F401, PLC0415 - typer loads it late

        from looseleaf.cli.app import app  # noqa: PLC0415 - typer may be missing
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        sys.exit(f'looseleaf: the command line needs {error.name}; install it with: pip install "looseleaf[cli]"')
    app(prog_name="looseleaf")
