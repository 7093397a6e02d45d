"""How much memory this process may still take, on Linux."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from looseleaf.errors import LooseleafError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["available_host_memory"]

# Per version of control groups: the folder below sys/fs/cgroup, the limit, the usage, and in memory.stat the page cache
# that the kernel would drop first.
_VERSION_1 = ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = (".", "memory.max", "memory.current", "inactive_file")


def available_host_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can allocate without swapping: `MemAvailable`, or less if its control groups leave less.

    Args:
        root: where `proc` and `sys` are.

    Raises:
        LooseleafError: there is no `/proc/meminfo`, as outside Linux; give a number of bytes instead.

    >>> available_host_memory() > 0
    True
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise LooseleafError("available memory is known on Linux only; give a number of bytes") from error
    kibibytes = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return max(0, min([1024 * kibibytes, *_left_by_control_groups(root)]))


def _left_by_control_groups(root: Path) -> Iterator[int]:
    """What the limits of this process's memory control group and of all groups above it leave."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number != "0" and "memory" not in controllers.split(","):
            continue
        base, limit_file, usage_file, cache_name = _VERSION_2 if number == "0" else _VERSION_1
        top = root / "sys/fs/cgroup" / base
        group = top / path.lstrip("/")
        # In a container the path may be the host's, of which only the top is mounted.
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(top))):
            limit, usage = _lines(folder / limit_file), _lines(folder / usage_file)
            if limit and usage and limit[0] != "max":
                statistics = dict(line.split() for line in _lines(folder / "memory.stat"))
                yield int(limit[0]) - int(usage[0]) + int(statistics.get(cache_name, 0))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
