"""Copy whole blocks: within a pool for copy-on-write, or between pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from looseleaf.errors import InvalidArgument, InvalidType
from looseleaf.ops.checks import check_no_grad, check_tensor, check_tensor_list, check_written
from looseleaf.ops.contents import are_checked, check_block_pairs, check_no_chain
from looseleaf.ops.native import REFUSALS, accepts, raise_refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["copy_blocks", "swap_blocks"]


def copy_blocks(caches: Sequence[Tensor], block_mapping: Tensor) -> None:
    """Copy blocks within each cache, all layers in one call.

    Args:
        caches: tensors [blocks, ...] of one device; one for each layer, or K and V caches one after the other.
        block_mapping: int32 [n, 2] on the caches' device, (source, destination); a row of -1 is skipped. A destination
            stands once, and is no source.

    Raises:
        InvalidArgument: a shape, device, stride or id that is not allowed, or a cache that requires grad.
        InvalidType: a type or dtype that is not allowed. No block was copied in either case.

    >>> import torch
    >>> cache = torch.tensor([[0.0], [1.0], [2.0]])
    >>> copy_blocks([cache], torch.tensor([[2, 0], [-1, -1]], dtype=torch.int32))
    >>> cache.flatten().tolist()
    [2.0, 1.0, 2.0]
    """
    refusal: Exception | None = None
    if isinstance(caches, list) and accepts(block_mapping, *caches):
        try:
            torch.ops.looseleaf.copy_blocks(caches, block_mapping)
        except REFUSALS as error:
            refusal = error  # the checks below find the argument
        else:
            return
    tensors = check_tensor_list("caches", caches)
    device = tensors[0].device if tensors else None
    shape = {"copies": None, "source, destination": 2}
    check_tensor("block_mapping", block_mapping, shape=shape, dtypes=(torch.int32,), device=device)
    for index, tensor in enumerate(tensors):
        check_written(f"caches[{index}]", tensor)
    check_no_grad(**{f"caches[{index}]": tensor for index, tensor in enumerate(tensors)})
    if not tensors:
        return
    if are_checked(block_mapping.device):
        num_blocks = min(tensor.size(0) for tensor in tensors)
        check_block_pairs(block_mapping, num_blocks, num_blocks, within_one_pool=True)
    raise_refusal(refusal)
    torch.ops.looseleaf.copy_blocks(tensors, block_mapping)


def swap_blocks(src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor) -> None:
    """Copy blocks from one pool to another, which may be on another device.

    Args:
        src: tensors [blocks, ...] of one device.
        dst: as many tensors, each with the dtype and the block shape of its source.
        block_mapping: int64 [n, 2] on the CPU, (block of the source, block of the destination). A destination stands
            once; where a tensor is both a source and a destination, it is no source.

    Raises:
        InvalidArgument: a shape, device, stride or id that is not allowed, or a tensor that requires grad.
        InvalidType: a type or dtype that is not allowed. No block was copied in either case.

    >>> import torch
    >>> pool, host = torch.tensor([[0.0], [1.0]]), torch.zeros(3, 1)
    >>> swap_blocks([pool], [host], torch.tensor([[1, 2]]))
    >>> host.flatten().tolist()
    [0.0, 0.0, 1.0]
    """
    refusal: Exception | None = None
    if isinstance(src, list) and isinstance(dst, list) and accepts(block_mapping, *src, *dst) and not _share(src, dst):
        try:
            torch.ops.looseleaf.swap_blocks(src, dst, block_mapping)
        except REFUSALS as error:
            refusal = error  # the checks below find the argument
        else:
            return
    sources, targets = check_tensor_list("src", src), check_tensor_list("dst", dst)
    _check_matching(sources, targets)
    shape = {"copies": None, "source, destination": 2}
    check_tensor("block_mapping", block_mapping, shape=shape, dtypes=(torch.int64,), device=torch.device("cpu"))
    check_no_grad(**{f"src[{index}]": tensor for index, tensor in enumerate(sources)})
    check_no_grad(**{f"dst[{index}]": tensor for index, tensor in enumerate(targets)})
    if not sources:
        return
    num_source = min(tensor.size(0) for tensor in sources)
    num_target = min(tensor.size(0) for tensor in targets)
    if are_checked(block_mapping.device):
        check_block_pairs(block_mapping, num_source, num_target, within_one_pool=False)
        if _share(sources, targets):
            check_no_chain(*block_mapping.unbind(1))
    raise_refusal(refusal)
    torch.ops.looseleaf.swap_blocks(sources, targets, block_mapping)


def _check_matching(sources: list[Tensor], targets: list[Tensor]) -> None:
    if len(sources) != len(targets):
        raise InvalidArgument(f"dst must have as many tensors as src, {len(sources)}, had {len(targets)}")
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if target.dtype != source.dtype:
            raise InvalidType(f"dst[{index}] must be {source.dtype} as src[{index}] is, was {target.dtype}")
        if target.shape[1:] != source.shape[1:]:
            raise InvalidArgument(
                f"dst[{index}] must have blocks of the shape {list(source.shape[1:])} as src[{index}] has, "
                f"had {list(target.shape[1:])}"
            )
        check_written(f"dst[{index}]", target)


def _share(src: Sequence[Tensor], dst: Sequence[Tensor]) -> bool:
    """Whether a tensor is both a source and a destination."""
    return not {tensor.data_ptr() for tensor in src if tensor.layout == torch.strided}.isdisjoint(
        tensor.data_ptr() for tensor in dst if tensor.layout == torch.strided and tensor.numel()
    )
