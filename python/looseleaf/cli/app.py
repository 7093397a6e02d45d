"""The command `looseleaf`, and how its commands fail: one line on stderr, exit code 1 (could not) or 2 (wrong usage).

A command is a function in a file of its own, registered at the end of this one. All of these files are imported at
every start, so they import torch and whatever needs it inside the function that uses it.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from looseleaf import __version__
from looseleaf.cli.bench import bench
from looseleaf.cli.doctor import doctor
from looseleaf.cli.generate import generate
from looseleaf.cli.replay import replay
from looseleaf.cli.size import size
from looseleaf.errors import LooseleafError, MissingPackage

__all__ = ["app"]

# Every way of calling a command wrongly derives from it. Typer exports it under no name, and its newer versions carry
# their own copy of click, so that click.UsageError is another class there.
_UsageError: Any = typer.BadParameter.__base__


class _Commands(TyperGroup):
    """Turns errors into one line and an exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - typer's own signature
        if not extra.get("standalone_mode", True):
            return super().main(*args, **extra)
        try:
            exit_code = super().main(*args, **(extra | {"standalone_mode": False}))
        except _UsageError as error:
            _report(error.format_message())
            exit_code = 2
        except LooseleafError as error:
            _report(str(error))
            exit_code = 1
        except ModuleNotFoundError as error:
            if error.name not in {"torch", "transformers"}:
                raise
            _report(str(MissingPackage(error.name, 'pip install "looseleaf[transformers]"')))
            exit_code = 1
        except typer.Abort:
            exit_code = 1
        raise SystemExit(exit_code or 0)


def _report(message: str) -> None:
    typer.echo(f"looseleaf: {' '.join(message.split())}", err=True)


app = typer.Typer(name="looseleaf", cls=_Commands, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def looseleaf(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """A paged KV cache for LLM inference."""
    if version:
        typer.echo(f"looseleaf {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command(name="bench")(bench)
app.command(name="doctor")(doctor)
app.command(name="generate")(generate)
app.command(name="replay")(replay)
app.command(name="size")(size)
