"""Way 1: the block allocator alone. No torch in the process."""

from looseleaf.allocator.batch import Batch, BatchBuffers
from looseleaf.allocator.content_keys import content_keys, low64
from looseleaf.allocator.manager import BlockManager, Invalidated, Lookup, Stats
from looseleaf.allocator.namespace import Namespace
from looseleaf.allocator.sequence import Sequence

__all__ = [
    "Batch",
    "BatchBuffers",
    "BlockManager",
    "Invalidated",
    "Lookup",
    "Namespace",
    "Sequence",
    "Stats",
    "content_keys",
    "low64",
]
