"""`looseleaf generate`: a real model answers prompts, batched on a paged cache, with a report of what that cost."""

from __future__ import annotations

import sys
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from looseleaf.cli.answers import Lines, Text, show_answers, show_json, show_report
from looseleaf.cli.device import check_device
from looseleaf.cli.progress import progress
from looseleaf.config import dtype_name
from looseleaf.engine import SamplingParams
from looseleaf.errors import InvalidArgument
from looseleaf.sizing import parse_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from looseleaf.engine import Engine, Result

__all__ = ["generate"]

_PROMPTS = (
    "What is a loose-leaf binder good for?",
    "Explain in two sentences why the sky is blue.",
    "Write a haiku about memory.",
    "List three differences between a queue and a stack.",
    "What is the capital of Portugal, and what is it known for?",
    "Translate to French: The book is on the table.",
    "A train leaves at 14:10 and arrives at 16:45. How long does it take?",
    (
        "Tell a very short story about a lighthouse keeper who cannot sleep, a storm that lasts three days, and a ship "
        "that arrives on the fourth. Keep it friendly enough for a child, and end with a question."
    ),
)
_MEMORY = "1GiB"
_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_S = "Sampling"
_BIAS = "ID=NUMBER: added to the logit of a token id; may be repeated."


class _Preemption(StrEnum):
    auto = "auto"
    recompute = "recompute"
    swap = "swap"


class _EarlyStopping(StrEnum):
    false = "false"
    true = "true"
    never = "never"

    @property
    def value_of_params(self) -> bool | Literal["never"]:
        return "never" if self is _EarlyStopping.never else self is _EarlyStopping.true


def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Messages to the model, in its chat template if it has one. Without any: 8 built in."),
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(help="Text file with a prompt in each line; -: stdin."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 64,
    num_blocks: Annotated[int | None, typer.Option(min=1, help="Blocks of the pool; instead of --memory.")] = None,
    memory: Annotated[str | None, typer.Option(help="Size of the pool, such as 2GiB.", show_default=_MEMORY)] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a block.")] = 16,
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16; of weights and cache.")] = "float32",
    device: Annotated[str, typer.Option(help="Where it runs, such as cuda or cuda:1.")] = "cpu",
    model: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Folder of a transformers model; instead of SmolLM2-135M."),
    ] = None,
    min_new_tokens: Annotated[int, typer.Option(help="No answer ends before so many tokens.", rich_help_panel=_S)] = 0,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.", rich_help_panel=_S)] = 0.0,
    top_p: Annotated[float, typer.Option(help="Likeliest tokens of so much probability.", rich_help_panel=_S)] = 1.0,
    top_k: Annotated[int, typer.Option(help="So many of the likeliest tokens; 0: all.", rich_help_panel=_S)] = 0,
    min_p: Annotated[
        float, typer.Option(help="Tokens at least so likely as the best times it.", rich_help_panel=_S)
    ] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Of tokens that were there.", rich_help_panel=_S)] = 1.0,
    frequency_penalty: Annotated[float, typer.Option(help="For each time in the answer.", rich_help_panel=_S)] = 0.0,
    presence_penalty: Annotated[float, typer.Option(help="Of tokens in the answer.", rich_help_panel=_S)] = 0.0,
    logit_bias: Annotated[list[str] | None, typer.Option(help=_BIAS, rich_help_panel=_S)] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed, the same answer.", rich_help_panel=_S)] = None,
    n: Annotated[int, typer.Option("--n", help="Answers to each prompt.", rich_help_panel=_S)] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="String that ends an answer.", rich_help_panel=_S)] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="Token id that ends an answer.", rich_help_panel=_S)
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the model's end.", rich_help_panel=_S)
    ] = False,
    num_beams: Annotated[int, typer.Option(help="Beams of a search; 1: none.", rich_help_panel=_S)] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Of beams: the higher, the longer the answers.", rich_help_panel=_S)
    ] = 1.0,
    early_stopping: Annotated[
        _EarlyStopping, typer.Option(help="When a beam search ends, as in transformers.", rich_help_panel=_S)
    ] = _EarlyStopping.false,
    prompt_lookup: Annotated[int, typer.Option(help="Draft tokens of a step; 0: none.", rich_help_panel=_S)] = 0,
    logprobs: Annotated[int | None, typer.Option(help="With --json, of so many tokens.", rich_help_panel=_S)] = None,
    prompt_logprobs: Annotated[int | None, typer.Option(help="The same for prompts.", rich_help_panel=_S)] = None,
    max_batch_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a step.")] = 1024,
    swap_memory: Annotated[str | None, typer.Option(help="Space for preempted requests, such as 1GiB.")] = None,
    preemption: Annotated[_Preemption, typer.Option(help="What becomes of their blocks.")] = _Preemption.auto,
    no_prefix_cache: Annotated[bool, typer.Option("--no-prefix-cache", help="Share no prefixes.")] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Print the text as it comes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Answer prompts with a real model, all at once on a paged cache, and report what that cost."""
    for problem, is_there in {
        "--num-blocks and --memory cannot be given together": num_blocks is not None and memory is not None,
        "--stream and --json cannot be given together": stream and as_json,
        "--logprobs and --prompt-logprobs need --json": (logprobs, prompt_logprobs) != (None, None) and not as_json,
        "--preemption swap needs --swap-memory": preemption is _Preemption.swap and swap_memory is None,
    }.items():
        if is_there:
            raise typer.BadParameter(problem)
    try:
        params = SamplingParams(
            max_tokens=max_new_tokens,
            min_tokens=min_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            frequency_penalty=frequency_penalty,
            presence_penalty=presence_penalty,
            logit_bias=_read_bias(logit_bias or []),
            seed=seed,
            n=n,
            stop=stop or (),
            stop_token_ids=stop_token_id or (),
            ignore_eos=ignore_eos,
            num_beams=num_beams,
            length_penalty=length_penalty,
            early_stopping=early_stopping.value_of_params,
            prompt_lookup_num_tokens=prompt_lookup,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )
        dtype = dtype_name(dtype)
        pool_bytes = None if num_blocks else parse_memory(memory or _MEMORY)
        swap_bytes = None if swap_memory is None else parse_memory(swap_memory)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from error
    texts = _read_prompts(prompts or [], file)
    engine: Engine | None = None
    results: list[Result] = []
    is_interrupted = False
    try:
        check_device(device)
        from looseleaf.engine import Engine  # noqa: PLC0415 - imports torch, which takes seconds

        engine = Engine(
            *_load_model(model, dtype, device),
            num_blocks=num_blocks,
            memory=pool_bytes,
            block_size=block_size,
            max_batch_tokens=max_batch_tokens,
            prefix_caching=not no_prefix_cache,
            swap_memory=swap_bytes,
            preemption=preemption.value,
        )
        _answer(engine, texts, params, results, stream=stream)
    except KeyboardInterrupt:
        is_interrupted = True
    if engine is not None:
        results.sort(key=lambda result: (result.index, result.sample))
        report, num_blocks = engine.report(), engine.cache.manager.num_blocks
        if as_json:
            show_json(texts, results, report, num_blocks)
        else:
            if not stream:
                show_answers(texts, results)
            show_report(report, num_blocks)
    if is_interrupted:
        typer.echo("looseleaf: interrupted", err=True)
        raise typer.Exit(_EXIT_INTERRUPTED)
    if any(result.error for result in results):
        raise typer.Exit(1)


def _read_prompts(prompts: list[str], file: Path | None) -> list[str]:
    if file is None:
        return prompts or list(_PROMPTS)
    try:
        text = sys.stdin.buffer.read() if file == Path("-") else file.read_bytes()
        lines = text.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--file {file}: {error.strerror if isinstance(error, OSError) else error}") from error
    prompts = prompts + [line for line in lines if line.strip()]
    if not prompts:
        raise typer.BadParameter(f"--file {file} holds no prompt")
    return prompts


def _read_bias(given: list[str]) -> dict[int, float] | None:
    bias = {}
    for one in given:
        token_id, _, number = one.partition("=")
        try:
            bias[int(token_id)] = float(number)
        except ValueError:
            raise typer.BadParameter(f"--logit-bias must be ID=NUMBER, not {one!r}") from None
    return bias or None


def _load_model(folder: Path | None, dtype: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import transformers  # noqa: PLC0415 - takes seconds, as what follows

    from looseleaf.integrations.transformers.smollm2 import load_smollm2  # noqa: PLC0415

    if folder is None:
        model, tokenizer = load_smollm2(dtype)
        return model.to(device), tokenizer
    transformers.utils.logging.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--model {folder}: {error}") from error
    return model.eval().to(device), tokenizer


def _answer(engine: Engine, prompts: list[str], params: SamplingParams, results: list[Result], *, stream: bool) -> None:
    """Append every result as soon as it is there, so that an interrupt keeps them; show progress on a terminal."""
    num_answers, max_tokens = len(prompts) * params.n, params.max_tokens
    printed = Text() if num_answers == 1 else Lines()
    with progress(is_hidden=stream) as bars, closing(engine.stream(prompts, params)) as events:
        tokens = bars.add_task("tokens", total=num_answers * max_tokens)
        answers = bars.add_task("answers", total=num_answers)
        for event in events:
            if stream:
                printed.add(event)
            bars.advance(tokens, int(event.token_id is not None))
            if event.result is not None:
                results.append(event.result)
                bars.advance(answers)
                is_search = params.num_beams > 1  # which has no event for a token
                num_seen = 0 if is_search else len(event.result.token_ids)
                bars.advance(tokens, max_tokens - num_seen)
