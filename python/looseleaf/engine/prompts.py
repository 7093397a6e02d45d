"""From what a caller gives to requests: prompts as token ids, stop tokens, seeds, samples and beams."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, TypeVar

from looseleaf.engine.beam import BeamSearch
from looseleaf.engine.params import SamplingParams
from looseleaf.engine.request import Request
from looseleaf.engine.text import encode
from looseleaf.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Prompts"]

_T = TypeVar("_T")


class Prompts:
    """Makes requests for one model.

    Args:
        model: what will answer; it knows its vocabulary and the tokens that end a text.
        tokenizer: None if all prompts are token ids.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self._tokenizer = tokenizer
        self._vocabulary_size = int(model.get_input_embeddings().num_embeddings)
        self._model = model

    def requests(
        self,
        prompts: Iterable[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams],
    ) -> list[Request]:
        """One request for each prompt; its further samples are in `Request.samples`.

        Raises:
            As `Engine.generate` for what it refuses before anything runs.
        """
        if isinstance(prompts, str):
            raise InvalidType("prompts must be a list of prompts, not one string")
        prompts = _listed("prompts", prompts)
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else _listed("params", params)
        if len(each) != len(prompts):
            raise InvalidArgument(f"params must be one, or as many as the {len(prompts)} prompts, not {len(each)}")
        for place, wish in enumerate(each):
            if not isinstance(wish, SamplingParams):
                raise InvalidType(f"params[{place}] must be SamplingParams, not {type(wish).__name__}")
        return [
            self._request(index, prompt, wish) for index, (prompt, wish) in enumerate(zip(prompts, each, strict=True))
        ]

    def _request(self, index: int, prompt: str | Sequence[int], params: SamplingParams) -> Request:
        if params.stop and self._tokenizer is None:
            raise InvalidArgument("stop strings need a tokenizer; give the engine one, or give stop_token_ids")
        highest = max(params.logit_bias or (), default=0)
        if highest >= self._vocabulary_size:
            raise InvalidArgument(f"logit_bias must be for token ids below {self._vocabulary_size}, not {highest}")
        if params.num_beams > self._vocabulary_size:
            raise InvalidArgument(
                f"num_beams must be at most the {self._vocabulary_size} tokens of the vocabulary, not "
                f"{params.num_beams}"
            )
        token_ids = encode(prompt, self._tokenizer, vocabulary_size=self._vocabulary_size)
        if params.num_beams > 1:
            return self._new(index, token_ids, params)
        seed = secrets.randbits(62) if params.seed is None else params.seed
        request = self._new(index, token_ids, params, seed=seed)
        request.samples = [
            self._new(index, token_ids, params, seed=seed + number, sample=number) for number in range(1, params.n)
        ]
        return request

    def _new(
        self, index: int, prompt: NDArray[np.int64], params: SamplingParams, *, seed: int = 0, sample: int = 0
    ) -> Request:
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= self._eos_token_ids()
        beam = None
        if params.num_beams > 1:
            beam = BeamSearch(params, stop_token_ids)
        return Request(
            index=index,
            prompt=prompt,
            params=params,
            sample=sample,
            seed=seed,
            stop_token_ids=stop_token_ids,
            beam=beam,
        )

    def _eos_token_ids(self) -> frozenset[int]:
        config = getattr(self._model, "generation_config", None) or self._model.config
        ids = config.eos_token_id
        if ids is None:
            return frozenset()
        return frozenset([ids] if isinstance(ids, int) else ids)


def _listed(name: str, values: Iterable[_T]) -> list[_T]:
    try:
        return list(values)
    except TypeError as error:
        raise InvalidType(f"{name} must be a list, not {type(values).__name__}") from error
