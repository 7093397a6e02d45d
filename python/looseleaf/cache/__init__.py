"""Way 2: the paged KV cache, which is the allocator and the operators together."""

from looseleaf.cache.paged import PagedKVCache
from looseleaf.cache.step import Step
from looseleaf.cache.storage import KVStorage
from looseleaf.cache.swap import SwappedIn, SwappedOut, SwapSpace

__all__ = ["KVStorage", "PagedKVCache", "Step", "SwapSpace", "SwappedIn", "SwappedOut"]
