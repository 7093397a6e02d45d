"""The C++ compiler of this machine, and how compilers are called."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass

from looseleaf.errors import LooseleafError

__all__ = ["Compiler", "CompilerUnavailable", "run"]

_TIMEOUT_SECONDS = 900  # nvcc takes minutes for a file of every architecture on a busy machine


class CompilerUnavailable(LooseleafError):
    """A compiler is not there, does not run or refuses the sources; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler and what it says about itself.

    Attributes:
        command: the program and its arguments, such as `("ccache", "g++")`.
        version: the first line of its `--version`.
    """

    command: tuple[str, ...]
    version: str

    @classmethod
    def find(cls) -> Compiler:
        """The one that the environment variable CXX names, else the first of c++, g++ and clang++ that is there.

        Raises:
            CompilerUnavailable: none is there, or it does not tell its version.
        """
        named = os.environ.get("CXX", "").strip()
        try:
            candidates = [shlex.split(named)] if named else [["c++"], ["g++"], ["clang++"]]
        except ValueError as error:
            raise CompilerUnavailable(f"CXX is {named!r}: {error}") from error
        for program, *arguments in candidates:
            path = shutil.which(program)
            if path is not None:
                command = (path, *arguments)
                told = run([*command, "--version"]).splitlines()
                return cls(command, told[0] if told else "")
        raise CompilerUnavailable(f"CXX names {named}, which is not there" if named else "no C++ compiler was found")

    def key(self) -> str:
        """Eight characters that differ between compilers, for names of folders."""
        return hashlib.sha256("\0".join((*self.command, self.version)).encode()).hexdigest()[:8]


def run(command: list[str]) -> str:
    """Run a compiler.

    Returns:
        What it printed.

    Raises:
        CompilerUnavailable: it could not be started, took too long or failed; with its first error.

    >>> run(["echo", "done"]).strip()
    'done'
    """
    try:
        done = subprocess.run(  # noqa: S603 - the user's own compiler
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerUnavailable(f"{command[0]} did not run: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        told = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
        raise CompilerUnavailable(f"{command[0]} failed: {told}")
    return done.stdout
