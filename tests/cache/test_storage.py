"""Layout, size and failure of the tensors."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from looseleaf.cache import KVStorage
from looseleaf.errors import InvalidArgument, InvalidType, OutOfMemory

SIZES: dict[str, Any] = {"num_layers": 3, "num_kv_heads": 2, "head_dim": 8}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_layer_is_one_tensor_with_the_null_block_first(dtype: torch.dtype) -> None:
    storage = KVStorage(5, 4, **SIZES, dtype=dtype)
    assert len(storage.layers) == 3
    for index, layer in enumerate(storage.layers):
        assert layer.shape == (6, 2, 2, 4, 8)
        assert layer.dtype == dtype
        assert layer.is_contiguous()
        assert bool((layer == 0).all())
        assert storage.k(index).shape == storage.v(index).shape == (6, 2, 4, 8)
        storage.k(index)[:] = 1
        assert bool((layer[:, 0] == 1).all())
        assert bool((layer[:, 1] == 0).all())
    assert storage.num_bytes == 3 * 6 * 2 * 2 * 4 * 8 * dtype.itemsize


def test_layers_start_at_a_page_of_memory() -> None:
    assert {layer.data_ptr() % 4096 for layer in KVStorage(5, 4, **SIZES, dtype=torch.float32).layers} == {0}


def _flags_of_mapping(address: int) -> set[str]:
    """What the kernel says about the mapping that holds an address: VmFlags in proc(5)."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            first, end = (int(part, 16) for part in name.split("-"))
            is_inside = first <= address < end
        elif is_inside and name == "VmFlags:":
            return set(rest.split())
    return set()


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages")
def test_pools_are_private_memory_with_huge_pages_advised() -> None:
    layer = KVStorage(512, 16, **SIZES | {"head_dim": 128}, dtype=torch.float32).layers[0]
    assert layer.nbytes > 1 << 23
    flags = _flags_of_mapping(layer.data_ptr() + layer.nbytes // 2)
    assert "wr" in flags
    assert "hg" in flags
    assert "sh" not in flags


def test_dtypes_and_devices_have_names() -> None:
    storage = KVStorage(5, 4, **SIZES, dtype="bf16", device=torch.device("cpu"))
    assert storage.layers[0].dtype == torch.bfloat16
    assert storage.device == torch.device("cpu")


def test_memory_is_taken_as_blocks_are_written() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    storage = KVStorage(2**14, 16, num_layers=1, num_kv_heads=8, head_dim=64, dtype=torch.float32)  # 1 GiB
    storage.k(0)[7] = 1
    assert storage.num_bytes > 2**30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB


def test_more_memory_than_there_is_is_refused_with_its_bytes() -> None:
    with pytest.raises(OutOfMemory) as caught:
        KVStorage(2**30, 16, **SIZES, dtype=torch.float32)
    assert caught.value.requested_bytes == 3 * (2**30 + 1) * 2 * 2 * 16 * 8 * 4
    assert 0 < caught.value.available_bytes < caught.value.requested_bytes
    assert str(caught.value.requested_bytes) in str(caught.value)
    assert isinstance(caught.value, MemoryError)


def test_failed_allocation_says_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(KVStorage, "_zeros", fail)
    with pytest.raises(OutOfMemory) as caught:
        KVStorage(5, 4, **SIZES, dtype=torch.float32)
    assert caught.value.requested_bytes == 3 * 6 * 2 * 2 * 4 * 8 * 4


def test_storage_made_in_inference_mode_can_be_written_outside_it() -> None:
    with torch.inference_mode():
        storage = KVStorage(5, 4, **SIZES, dtype=torch.float32)
    storage.k(0)[1] = 1
    with torch.inference_mode():
        storage.k(0)[1] = 2
    assert storage.k(0)[1, 0, 0, 0].item() == 2


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_layers": 0}, InvalidArgument),
        ({"head_dim": -1}, InvalidArgument),
        ({"num_kv_heads": 2.0}, InvalidType),
        ({"dtype": torch.float64}, InvalidArgument),
        ({"dtype": 4}, InvalidType),
        ({"device": "nowhere"}, InvalidArgument),
    ],
)
def test_wrong_argument_is_named(changes: dict[str, object], error: type[Exception]) -> None:
    arguments: dict[str, Any] = {**SIZES, "dtype": torch.float32, "device": "cpu"} | changes
    with pytest.raises(error, match=next(iter(changes))):
        KVStorage(5, 4, **arguments)
