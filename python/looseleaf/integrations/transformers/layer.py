"""What transformers asks of one layer of a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from transformers.cache_utils import CacheLayerMixin

from looseleaf.errors import InvalidArgument
from looseleaf.integrations.transformers.versions import num_queries

if TYPE_CHECKING:
    from torch import Tensor

    from looseleaf.integrations.transformers.rows import BatchRows

__all__ = ["Layer"]


class Layer(CacheLayerMixin):  # type: ignore[misc]
    """A layer of a `PagedCache`. The work is the cache's."""

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, rows: BatchRows) -> None:
        super().__init__()
        self.is_initialized = True
        self._rows = rows  # not the cache, which holds this object and must be collected at once

    def get_seq_length(self) -> int:
        """Columns that are computed, padding included."""
        return self._rows.length

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        """Columns that a mask of the next `query_length` columns would have, and where it would begin."""
        return self._rows.length + num_queries(query_length), 0

    def get_max_length(self) -> int:
        """No length that transformers has to keep to: the pool refuses what does not fit."""
        return -1

    get_max_cache_shape = get_max_length

    def lazy_initialization(self, *_: object) -> None:
        """Do nothing: the pool is there."""

    def update(self, *_: object, **__: object) -> NoReturn:
        """Refuse what does not come through the cache, which has methods of the same names for all layers at once."""
        raise InvalidArgument(
            "a layer of a PagedCache has no tensors of its own: it changes with all others, through the cache's "
            "methods, and stays on its device"
        )

    reset = crop = reorder_cache = batch_repeat_interleave = batch_select_indices = offload = prefetch = update
