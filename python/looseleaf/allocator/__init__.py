"""Way 1: the block allocator alone. No torch in the process."""

from looseleaf.allocator.batch import Batch, BatchBuffers
from looseleaf.allocator.manager import BlockManager, Lookup, Stats
from looseleaf.allocator.sequence import Sequence

__all__ = ["Batch", "BatchBuffers", "BlockManager", "Lookup", "Sequence", "Stats"]
