"""Many prompts at once through a real model, token by token as they come.

Run: python examples/engine.py [PROMPT ...]
"""

from __future__ import annotations

import sys

from looseleaf import Engine, SamplingParams
from looseleaf.integrations.transformers.smollm2 import load_smollm2

PROMPTS = ["Name a color.", "Count to five.", "What is the capital of Portugal?"]


def main() -> None:
    """Print each answer when its last token is there, then what the generation cost."""
    prompts = sys.argv[1:] or PROMPTS
    engine = Engine(*load_smollm2(), memory="256MiB")
    for event in engine.stream(prompts, SamplingParams(max_tokens=24)):
        if event.result is not None:
            print(f"[{event.index + 1}] {prompts[event.index]}\n    {event.result.text}")
    report = engine.report()
    print(f"{report.num_generated_tokens} tokens in {report.num_steps} steps, {report.peak_blocks} blocks at most")


if __name__ == "__main__":
    main()
