from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from looseleaf.errors import LooseleafError
from looseleaf.host_memory import available_host_memory

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1024**3


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A Linux machine with 8 GiB available and no control groups."""
    write(tmp_path / "proc/meminfo", f"MemTotal: 9 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    return tmp_path


def write(file: Path, text: str | int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def write_group(folder: Path, limit: str | int, usage: int, *, cached: int = 0) -> None:
    write(folder / "memory.max", limit)
    write(folder / "memory.current", usage)
    write(folder / "memory.stat", f"anon 5\ninactive_file {cached}")


def test_without_control_groups_all_available_memory_is_ours(root: Path) -> None:
    assert available_host_memory(root) == 8 * GIB


def test_the_tightest_group_above_the_process_counts(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/slice/job")
    write_group(root / "sys/fs/cgroup/slice/job", "max", 2 * GIB)
    write_group(root / "sys/fs/cgroup/slice", 6 * GIB, 4 * GIB)
    assert available_host_memory(root) == 2 * GIB


def test_page_cache_that_nobody_uses_is_available(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/")
    write_group(root / "sys/fs/cgroup", 6 * GIB, 4 * GIB, cached=GIB)
    assert available_host_memory(root) == 3 * GIB


def test_a_group_over_its_limit_leaves_nothing(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/")
    write_group(root / "sys/fs/cgroup", 2 * GIB, 3 * GIB)
    assert available_host_memory(root) == 0


def test_a_roomy_group_does_not_add_memory(root: Path) -> None:
    write(root / "proc/self/cgroup", "0::/")
    write_group(root / "sys/fs/cgroup", 100 * GIB, 0)
    assert available_host_memory(root) == 8 * GIB


@pytest.mark.parametrize("path", ["/", "/docker/unmounted"])
def test_the_first_version_of_control_groups_counts(root: Path, path: str) -> None:
    write(root / "proc/self/cgroup", f"5:cpu,cpuacct:/\n4:hugetlb,memory:{path}\n0::/")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", 5 * GIB)
    write(root / "sys/fs/cgroup/memory/memory.usage_in_bytes", 2 * GIB)
    write(root / "sys/fs/cgroup/memory/memory.stat", f"inactive_file 7\ntotal_inactive_file {GIB}")
    assert available_host_memory(root) == 4 * GIB


def test_elsewhere_it_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LooseleafError, match="known on Linux only; give a number of bytes"):
        available_host_memory(tmp_path)


def test_this_machine_has_memory() -> None:
    assert available_host_memory() > 0
