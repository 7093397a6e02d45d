"""The one definition of the operators: namespace `looseleaf` of `torch.library`.

A compiled library only implements these schemas, for the CPU or the CUDA key; a second definition of the namespace ends
the process. What each argument means stands in the wrappers of this package.
"""

from __future__ import annotations

import torch

__all__ = ["LIBRARY", "NAMESPACE", "SCHEMAS"]

NAMESPACE = "looseleaf"

_ATTEND = (
    "Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seq_lens, Tensor cu_query_lens, "
    "SymInt max_query_len, float scale, bool causal=True, int? window=None, float softcap=0.0, Tensor? sinks=None, "
    "Tensor? alibi_slopes=None, Tensor? k_scale=None, Tensor? v_scale=None, bool batch_invariant=False"
)

SCHEMAS = {
    "write": (
        "write(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, "
        "Tensor? k_scale=None, Tensor? v_scale=None) -> ()"
    ),
    "attend": f"attend({_ATTEND}) -> (Tensor out, Tensor lse)",
    # An out variant returns nothing: a returned alias fails under inductor.
    "attend_out": f"attend_out({_ATTEND}, *, Tensor(a!) out, Tensor(b!)? lse=None) -> ()",
    "copy_blocks": "copy_blocks(Tensor(a!)[] caches, Tensor block_mapping) -> ()",
    "gather": (
        "gather(Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor cu_seq_lens, "
        "Tensor(a!) k_out, Tensor(b!) v_out, Tensor? k_scale=None, Tensor? v_scale=None) -> ()"
    ),
    "swap_blocks": "swap_blocks(Tensor[] src, Tensor(a!)[] dst, Tensor block_mapping) -> ()",
    "merge_states": "merge_states(Tensor out_a, Tensor lse_a, Tensor out_b, Tensor lse_b) -> (Tensor out, Tensor lse)",
}

LIBRARY = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
for _schema in SCHEMAS.values():
    LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
