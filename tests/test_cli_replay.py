from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from looseleaf.cli.app import app
from looseleaf.engine.replay import Entry, Replay, read_trace
from looseleaf.errors import InvalidArgument
from traces import conversations

if TYPE_CHECKING:
    from pathlib import Path

runner = CliRunner()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Conversations whose later turns repeat the earlier ones."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 40, "hash_ids": ids}
        for ids in conversations(300, seed=3)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.csv"
    rows = "".join(f"2023-11-16 18:15:46,{100 + number % 7 * 90},{20 + number % 5 * 30}\n" for number in range(120))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    return path


def replayed(*arguments: object) -> dict[str, list[dict[str, float]]]:
    result = runner.invoke(app, ["replay", "--json", *map(str, arguments)])
    assert result.exit_code == 0, result.stderr
    document: dict[str, list[dict[str, float]]] = json.loads(result.stdout)
    return document


def test_without_a_limit_every_repeated_block_hits_whatever_the_block_size(trace: Path) -> None:
    requests = conversations(300, seed=3)
    num_ids, num_unique = sum(map(len, requests)), len({number for ids in requests for number in ids})
    sizes = ["--block-size", 512, "--block-size", 128, "--block-size", 1024]
    rows = replayed(trace, *sizes, "--num-blocks", 40_000)["trace.jsonl"]
    assert [row["block_size"] for row in rows] == [512, 128, 1024]
    for row in rows[:2]:
        assert row["hit_percent"] == pytest.approx(100 * (num_ids - num_unique) / num_ids)
        assert (row["num_evicted"], row["num_preemptions"], row["num_steps"]) == (0, 0, 0)
    assert 0 < rows[2]["hit_percent"] < rows[0]["hit_percent"], "an odd number of ids leaves half a block"
    assert rows[0]["peak_blocks"] == max(map(len, requests))


def test_a_smaller_pool_hits_less_and_evicts_more(trace: Path) -> None:
    pools = [option for size in (70, 200, 2_000) for option in ("--num-blocks", size)]
    rows = replayed(trace, *pools)["trace.jsonl"]
    assert [row["num_blocks"] for row in rows] == [70, 200, 2_000]
    hits = [row["hit_percent"] for row in rows]
    assert hits == sorted(set(hits))
    evicted = [row["num_evicted"] for row in rows]
    assert evicted == sorted(set(evicted), reverse=True)


def test_requests_that_run_together_are_preempted_when_the_pool_is_small(lengths: Path) -> None:
    pools = ["--num-blocks", 60, "--num-blocks", 2_000]
    small, large = replayed(lengths, "--max-sequences", 16, "--block-size", 16, *pools)["lengths.csv"]
    assert small["num_preemptions"] > 0
    assert large["num_preemptions"] == 0
    assert small["num_steps"] > large["num_steps"] > 0
    assert small["peak_blocks"] <= 60
    assert small["num_requests"] == large["num_requests"] == 120
    assert large["hit_percent"] == 0, "no two prompts are alike"


def test_what_never_fits_is_counted_apart(lengths: Path) -> None:
    for together in (1, 4):
        (row,) = replayed(lengths, "--num-blocks", 30, "--max-sequences", together)["lengths.csv"]
        assert row["num_never_fit"] > 0
        assert row["num_requests"] + row["num_never_fit"] == 120


def test_only_the_first_requests(trace: Path) -> None:
    (row,) = replayed(trace, "--max-requests", 7, "--num-blocks", 500)["trace.jsonl"]
    assert row["num_requests"] == 7


def test_a_table_for_people(trace: Path, lengths: Path) -> None:
    arguments = ["replay", str(trace), str(lengths), "--num-blocks", "1000"]
    result = runner.invoke(app, arguments, env={"COLUMNS": "140"})
    assert result.exit_code == 0
    assert "trace.jsonl: 300 requests" in result.stdout
    assert "lengths.csv: 120 requests" in result.stdout
    assert result.stderr == ""


def test_what_is_no_trace_is_named(tmp_path: Path) -> None:
    for text in ('{"hash_ids": "x"}', '{"length": 3}', "a,b\n1,2\n", "ContextTokens,GeneratedTokens\n1,many\n"):
        path = tmp_path / "wrong"
        path.write_text(text)
        result = runner.invoke(app, ["replay", str(path)])
        assert result.exit_code == 1
        assert "is no trace" in result.stderr
        with pytest.raises(InvalidArgument):
            read_trace(path)
    assert runner.invoke(app, ["replay", str(tmp_path / "none")]).exit_code == 2


def test_wrong_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="must divide 512 or be multiples of it"):
        Replay([Entry([1], 512, 1)], [48])
    with pytest.raises(InvalidArgument, match="must have a request"):
        Replay([], [16])
    (tmp_path / "empty.csv").write_text("ContextTokens,GeneratedTokens\n")
    assert runner.invoke(app, ["replay", str(tmp_path / "empty.csv")]).exit_code == 1
