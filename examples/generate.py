"""`model.generate()` on a paged cache: a conversation, its branches, a prompt that begins alike, beams.

A small model with random weights stands in for yours. Every answer is compared with that of transformers' own cache.

Run: python examples/generate.py
"""

from __future__ import annotations

import inspect

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from looseleaf.integrations.transformers import PagedCache

CONFIG = LlamaConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, eos_token_id=None)
# Transformers below 5.2x knows no `cache=`, and warns from there on about the older name.
NEW_NAME = "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
CACHE = "cache" if NEW_NAME else "past_key_values"


def generate(model: LlamaForCausalLM, prompt: list[int], cache: PagedCache, *, num_beams: int = 1) -> list[int]:
    """Return prompt and answer."""
    options = {"max_new_tokens": 8, "num_beams": num_beams, "do_sample": False, "pad_token_id": 0}
    tokens: torch.Tensor = model.generate(torch.tensor([prompt]), **{CACHE: cache}, **options)
    if not tokens.equal(model.generate(torch.tensor([prompt]), **options)):
        raise SystemExit("paged and contiguous answers differ")
    whole: list[int] = tokens[0].tolist()
    return whole


def main() -> None:
    """Print what is computed and what is shared."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    with PagedCache(model, num_blocks=64) as cache:
        # Each turn begins with all that was said, so only its own tokens are computed.
        said = generate(model, list(range(1, 41)), cache)
        said = generate(model, [*said, 50, 51, 52], cache)
        print("conversation", len(said), "tokens in", cache.pool.stats().num_in_use, "blocks")

        # Two ways on: each shares the blocks of what was said.
        for ending in ([60], [70, 71]):
            with cache.fork() as branch:
                generate(model, [*said, *ending], branch)
                print("branch      ", cache.pool.stats().num_in_use, "blocks for both")

        # Any other prompt, the same one included, needs a `begin`; it keeps the blocks that the two have in common.
        other = [*said[:32], 99, 98]
        print("another     ", cache.begin(torch.tensor([other])), "of", len(other), "tokens are not computed again")
        generate(model, other, cache)

        cache.reset()
        generate(model, said, cache, num_beams=4)
        print("beams       ", cache.num_rows, "rows in", cache.pool.stats().num_in_use, "blocks")


if __name__ == "__main__":
    main()
