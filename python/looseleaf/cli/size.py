"""`looseleaf size`: what the KV cache of a model costs, and how much of it fits, paged and contiguous."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from looseleaf.config import ModelShape, dtype_name
from looseleaf.errors import InvalidArgument
from looseleaf.sizing import (
    blocks_for_tokens,
    bytes_per_block,
    bytes_per_token,
    contiguous_bytes,
    format_bytes,
    num_blocks_for_budget,
    paged_bytes,
    parse_memory,
)

__all__ = ["size"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """The answer; the names are those of the JSON document. `memory_bytes` and what follows need `--memory`."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    block_size: int
    sequence_len: int
    max_sequence_len: int
    bytes_per_token: int
    bytes_per_block: int
    blocks_per_sequence: int
    paged_bytes_per_sequence: int
    contiguous_bytes_per_sequence: int
    saved_percent: float
    memory_bytes: int | None = None
    num_blocks: int | None = None
    num_paged_sequences: int | None = None
    num_contiguous_sequences: int | None = None


def size(
    config: Annotated[
        Path | None,
        typer.Argument(exists=True, help="config.json of a transformers model, or its folder.", show_default=False),
    ] = None,
    *,
    layers: Annotated[int | None, typer.Option(min=1, help="Layers; instead of CONFIG.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="KV heads of a layer; instead of CONFIG.")] = None,
    head_dim: Annotated[int | None, typer.Option(min=1, help="Elements of a head; instead of CONFIG.")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, float16 or bfloat16.", show_default="that of CONFIG; without CONFIG float16"),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="Memory for the cache, such as 24GiB or 80GB.")] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens of a block.")] = 16,
    sequence_len: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a sequence, on average.", show_default="--max-sequence-len"),
    ] = None,
    max_sequence_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens that a contiguous cache is allocated for.",
            show_default="that of CONFIG, else --sequence-len",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Size the KV cache of a model: bytes per token, block and sequence; what fits; paged against contiguous."""
    try:
        memory_bytes = None if memory is None else parse_memory(memory)
        dtype = None if dtype is None else dtype_name(dtype)
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from error
    shape = _shape(config, dtype, {"--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim})
    longest = max_sequence_len or shape.max_sequence_len or sequence_len
    if longest is None:
        raise typer.BadParameter("the length of a sequence is unknown: give --sequence-len or --max-sequence-len")
    mean = sequence_len or longest
    if mean > longest:
        raise typer.BadParameter(f"--sequence-len {mean} is above the longest sequence, {longest} (--max-sequence-len)")
    report = _report(shape, block_size, mean=mean, longest=longest, memory_bytes=memory_bytes)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        _print(report)


def _shape(config: Path | None, dtype: str | None, numbers: dict[str, int | None]) -> ModelShape:
    given = [option for option, number in numbers.items() if number is not None]
    if config is not None:
        if given:
            raise typer.BadParameter(f"give CONFIG or {', '.join(given)}, not both")
        return ModelShape.from_config(config, dtype=dtype)
    layers, kv_heads, head_dim = numbers.values()
    if layers is None or kv_heads is None or head_dim is None:
        missing = [option for option in numbers if option not in given]
        raise typer.BadParameter(f"give CONFIG, or --layers, --kv-heads and --head-dim; missing: {', '.join(missing)}")
    return ModelShape(num_layers=layers, num_kv_heads=kv_heads, head_dim=head_dim, dtype=dtype or "float16")


def _report(shape: ModelShape, block_size: int, *, mean: int, longest: int, memory_bytes: int | None) -> _Report:
    paged, contiguous = paged_bytes(shape, mean, block_size=block_size), contiguous_bytes(shape, longest)
    blocks_per_sequence = blocks_for_tokens(mean, block_size)
    num_blocks = None if memory_bytes is None else num_blocks_for_budget(memory_bytes, shape, block_size)
    return _Report(
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=shape.dtype,
        block_size=block_size,
        sequence_len=mean,
        max_sequence_len=longest,
        bytes_per_token=bytes_per_token(shape),
        bytes_per_block=bytes_per_block(shape, block_size),
        blocks_per_sequence=blocks_per_sequence,
        paged_bytes_per_sequence=paged,
        contiguous_bytes_per_sequence=contiguous,
        saved_percent=round(100 * (1 - paged / contiguous), 2),
        memory_bytes=memory_bytes,
        num_blocks=num_blocks,
        num_paged_sequences=None if num_blocks is None else num_blocks // blocks_per_sequence,
        num_contiguous_sequences=None if memory_bytes is None else memory_bytes // contiguous,
    )


def _print(report: _Report) -> None:
    console = Console(highlight=False)
    console.print(f"{report.num_layers} layers, {report.num_kv_heads} KV heads of {report.head_dim}, {report.dtype}")
    console.print(f"a sequence: {report.sequence_len:,} tokens on average, {report.max_sequence_len:,} at most")
    table = Table()
    table.add_column()
    for name in ("paged", "contiguous"):
        table.add_column(name, justify="right")
    token = format_bytes(report.bytes_per_token)
    table.add_row("a token", token, token)
    table.add_row(f"a block of {report.block_size} tokens", format_bytes(report.bytes_per_block), "")
    table.add_row("blocks of a sequence", f"{report.blocks_per_sequence:,}", "")
    table.add_row(
        "a sequence",
        format_bytes(report.paged_bytes_per_sequence),
        format_bytes(report.contiguous_bytes_per_sequence),
    )
    table.add_row("saved", f"{report.saved_percent:g} %", "")
    if report.memory_bytes is not None:
        memory = format_bytes(report.memory_bytes)
        table.add_section()
        table.add_row(f"blocks in {memory}", f"{report.num_blocks:,}", "")
        table.add_row(
            f"sequences in {memory}", f"{report.num_paged_sequences:,}", f"{report.num_contiguous_sequences:,}"
        )
    console.print(table)
