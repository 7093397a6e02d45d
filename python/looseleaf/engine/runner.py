"""One step through the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from looseleaf.errors import InvalidArgument, UnsupportedModel
from looseleaf.integrations.transformers.attention import ATTENTION_NAME, check_attention
from looseleaf.integrations.transformers.switch import run_with_attention

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from looseleaf.cache import Step
    from looseleaf.engine.graphs import DecodeGraphs
    from looseleaf.integrations.transformers.switch import Windows

__all__ = ["Runner"]


class Runner:
    """A transformers model for causal language, run on packed steps.

    The first step checks that the model does use our attention, once in every layer: some models ignore the setting
    with no more than a warning, and would answer from nothing.

    Args:
        model: a transformers model; it runs where its weights are, in their dtype.
        num_layers: layers that keep keys and values.

    Attributes:
        graphs: replays decode steps, once the first step was checked; None: every step is launched.
    """

    def __init__(self, model: PreTrainedModel, *, num_layers: int) -> None:
        self._model = model
        self._num_layers = num_layers
        self._is_checked = False
        self.graphs: DecodeGraphs | None = None

    def call(self, step: Step) -> Tensor:
        """The model on a step, unchecked: logits [sequences, vocabulary] after the last token of each sequence."""
        return self._call(step, step.last_rows, step)

    @torch.inference_mode()
    def forward(self, step: Step, rows: Tensor | None = None) -> Tensor:
        """Compute the tokens of a step, and write their keys and values.

        Args:
            step: what `PagedKVCache.step` returned, not committed yet; the model attends through it.
            rows: int64, the tokens of the step after which logits are wanted; None: the last of each sequence.

        Returns:
            [rows, vocabulary], those logits.

        Raises:
            UnsupportedModel: the model did not call our attention once in every layer, or has a window that its layers
                do not name.
        """
        if self._model.training:
            raise InvalidArgument(f"{self._name} is in training mode; call model.eval() first")
        return run_with_attention(self._model, ATTENTION_NAME, lambda windows: self._run(step, rows, windows))

    def _run(self, step: Step, rows: Tensor | None, windows: Windows) -> Tensor:
        if self._is_checked and self.graphs is not None and rows is None:
            logits = self.graphs.forward(step)
            if logits is not None:
                return logits
        rows = step.last_rows if rows is None else rows.to(step.last_rows.device, non_blocking=True)
        return self._call(step, rows, step) if self._is_checked else self._call_checked(step, rows, windows)

    def _call_checked(self, step: Step, rows: Tensor, windows: Windows) -> Tensor:
        check_attention(self._model)
        witness = _Witness(step)
        try:
            logits = self._call(step, rows, witness)
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise self._unsupported() from error
        except InvalidArgument as error:
            if witness.layers:
                raise
            raise self._unsupported() from error  # our attention was called, and the step did not reach it
        if sorted(witness.layers) != list(range(self._num_layers)):
            raise UnsupportedModel(
                f"{self._name} called {ATTENTION_NAME} for layers {sorted(witness.layers)}, expected once for each of "
                f"{self._num_layers}: it does not take its attention from transformers' AttentionInterface"
            )
        windows.check(self._model)
        if logits.shape[0] != len(rows):
            raise UnsupportedModel(f"{self._name} ignores logits_to_keep")
        self._is_checked = True
        return logits

    def _unsupported(self) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self._name} does not hand arguments to its attention, which the engine needs; model.generate() with "
            "PagedCache does not"
        )

    @property
    def _name(self) -> str:
        return type(self._model).__name__

    def _call(self, step: Step, rows: Tensor, attention: Step | _Witness) -> Tensor:
        output = self._model(
            input_ids=step.token_ids[None],
            position_ids=step.positions[None],
            use_cache=False,
            logits_to_keep=rows,
            step=attention,
        )
        logits: Tensor = output.logits[0]
        return logits


class _Witness:
    """Stands before a step and writes down which layers attend."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.layers: list[int] = []

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None,
        window: int | None,
        softcap: float,
        sinks: Tensor | None,
    ) -> Tensor:
        self.layers.append(layer)
        return self._step.attend(layer, q, k, v, scale=scale, window=window, softcap=softcap, sinks=sinks)
