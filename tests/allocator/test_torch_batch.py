"""Batch buffers as torch tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from looseleaf import BlockManager
from looseleaf.allocator import BatchBuffers


@pytest.fixture
def manager() -> BlockManager:
    return BlockManager(32, 4, max_sequences=3, max_sequence_len=18)


def test_tensors_hold_what_arrays_hold(manager: BlockManager) -> None:
    tensors = manager.bind_batch(max_batch_tokens=10, backend="torch")
    arrays = manager.bind_batch(max_batch_tokens=10)
    parent = manager.admit([1, 2, 3, 4, 5])
    steps = [([parent], 5), ([parent], 2), ([], 0), ([parent], 0)]
    for sequences, num_new in steps:
        for batch in (tensors, arrays):
            manager.reserve(sequences, num_new, batch=batch)
        for name in BatchBuffers.__slots__:
            for ours, theirs in ((tensors, arrays), (tensors.buffers, arrays.buffers)):
                tensor, array = getattr(ours, name), getattr(theirs, name)
                assert isinstance(tensor, torch.Tensor)
                assert tensor.device.type == "cpu"
                assert tensor.numpy().dtype == array.dtype
                assert np.array_equal(tensor.numpy(), array), name
        manager.commit(sequences)


def test_addresses_are_stable(manager: BlockManager) -> None:
    batch = manager.bind_batch(max_batch_tokens=10, backend="torch")
    addresses = {name: getattr(batch.buffers, name).data_ptr() for name in BatchBuffers.__slots__}
    sequences = [manager.admit([1, 2, 3])]
    for _ in range(12):
        manager.reserve(sequences)
        manager.commit(sequences)
        if len(sequences) < 3:
            sequences.append(sequences[0].fork())
    for name, address in addresses.items():
        assert getattr(batch.buffers, name).data_ptr() == address
        assert getattr(batch, name).data_ptr() in {address, 0}  # torch has no address for a view of nothing
        assert getattr(batch, name).is_contiguous()


def test_bound_tensors_cannot_be_moved(manager: BlockManager) -> None:
    batch = manager.bind_batch(max_batch_tokens=10, backend="torch")
    with pytest.raises(RuntimeError, match="resize"):
        batch.buffers.slot_mapping.resize_(1 << 20)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU's driver locks pages")
def test_pinned_tensors_are_pinned(manager: BlockManager) -> None:
    batch = manager.bind_batch(max_batch_tokens=10, backend="torch", pin_memory=True)
    assert all(getattr(batch.buffers, name).is_pinned() for name in BatchBuffers.__slots__)
