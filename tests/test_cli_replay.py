from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from looseleaf.cli.app import app
from looseleaf.engine.replay import Replay
from looseleaf.engine.trace import Entry, read_trace
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
        assert row["block_hit_percent"] == pytest.approx(row["hit_percent"])
    assert 0 < rows[2]["hit_percent"] < rows[0]["hit_percent"], "an odd number of ids leaves half a block"
    assert rows[0]["peak_blocks"] == max(map(len, requests))


def test_sizes_may_have_commas_between_them(trace: Path) -> None:
    repeated = ["--block-size", 512, "--block-size", 128, "--num-blocks", 99, "--num-blocks", 200]
    short = ["--block-size", "512,128", "--num-blocks", "99, 200"]
    assert replayed(trace, *short) == replayed(trace, *repeated)


@pytest.mark.parametrize("wrong", ["0", "16,", "16,x", "1,000", "-3"])
@pytest.mark.parametrize("option", ["--block-size", "--num-blocks"])
def test_sizes_that_are_no_numbers_are_wrong_usage(trace: Path, option: str, wrong: str) -> None:
    result = runner.invoke(app, ["replay", str(trace), option, wrong])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"looseleaf: Invalid value: {option} must be integers of at least 1, not {wrong}\n"


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
    for row in (small, large):
        assert row["hit_percent"] == 0, "no two prompts are alike; what a preempted one finds of itself is no hit"


def test_a_terminal_shows_something_while_the_trace_is_read(tmp_path: Path) -> None:
    """The trace is a pipe that is filled only when the terminal has shown what is done."""
    path = tmp_path / "trace"
    os.mkfifo(path)
    terminal, stderr = pty.openpty()
    command = [sys.executable, "-m", "looseleaf.cli", "replay", str(path), "--num-blocks", "9"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, env=os.environ | {"TERM": "xterm"}
    ) as process:
        os.close(stderr)
        shown = b""
        while b"reading trace" not in shown:
            shown += os.read(terminal, 1024)
        path.write_text("ContextTokens,GeneratedTokens\n10,1\n")
        assert process.stdout is not None
        assert b"1 requests" in process.stdout.read()
    os.close(terminal)
    assert process.returncode == 0


def test_a_replay_is_the_same_beside_others(lengths: Path) -> None:
    common = [lengths, "--max-sequences", 16, "--num-blocks", 60, "--block-size", 16]
    (alone,) = replayed(*common)["lengths.csv"]
    first, _ = replayed(*common, "--block-size", 10)["lengths.csv"]
    assert first == alone
    # The first answer has 20 tokens, one of them at the end of the prompt.
    (row,) = replayed(lengths, "--max-requests", 1, "--max-sequences", 2, "--num-blocks", 60)["lengths.csv"]
    assert row["num_steps"] == 20


def test_tokens_of_a_block_that_is_not_full_count_as_one_block(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"input_length": 600, "output_length": 1, "hash_ids": [0, 1]}\n' * 2)
    (row,) = replayed(path, "--num-blocks", 10)["trace.jsonl"]
    assert (row["hit_percent"], row["block_hit_percent"]) == (50, 50)
    path.write_text(path.read_text() + '{"input_length": 520, "output_length": 1, "hash_ids": [0, 2]}\n')
    (row,) = replayed(path, "--num-blocks", 10)["trace.jsonl"]
    assert row["hit_percent"] == pytest.approx(100 * (600 + 512) / (600 + 600 + 520))
    assert row["block_hit_percent"] == 50


def test_requests_come_at_their_times(tmp_path: Path) -> None:
    table = tmp_path / "lengths.csv"
    dates = ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.6905900", "2023-11-16 18:16:46.6805900")
    rows = "".join(f"{date},32,10\n" for date in dates)
    table.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    lines = tmp_path / "trace.jsonl"
    times = (7_000, 7_010, 67_000)
    lines.write_text(
        "".join(
            json.dumps({"timestamp": time, "input_length": 32, "output_length": 10, "hash_ids": [number]}) + "\n"
            for number, time in enumerate(times)
        )
    )
    common = ["--block-size", 16, "--num-blocks", 100, "--max-sequences", 8]
    for path in (table, lines):
        (queued,) = replayed(path, *common)[path.name]
        (timed,) = replayed(path, *common, "--step-ms", 10)[path.name]
        # Together: 10 steps. The second comes a step after the first, the third when both are long done.
        assert (queued["num_steps"], queued["peak_blocks"]) == (10, 9)
        assert (timed["num_steps"], timed["peak_blocks"]) == (11 + 10, 6)


def test_wrong_step_times_are_wrong_usage(lengths: Path) -> None:
    result = runner.invoke(app, ["replay", str(lengths), "--step-ms", "5", "--max-sequences", "1"])
    assert result.exit_code == 2
    assert "--step-ms needs --max-sequences above 1" in result.stderr
    for value in ("0", "-1", "nan", "inf"):
        result = runner.invoke(app, ["replay", str(lengths), "--step-ms", value])
        assert result.exit_code == 2
        assert "--step-ms must be above 0 and finite" in result.stderr


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
    result = runner.invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "…" not in result.stdout
    assert "trace.jsonl: 300 requests" in result.stdout
    assert "lengths.csv: 120 requests" in result.stdout
    assert result.stderr == ""


def test_a_replay_needs_no_torch(lengths: Path) -> None:
    code = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None"
    command = [sys.executable, "-c", f"{code}; import looseleaf.cli; looseleaf.cli.main()", "replay", str(lengths)]
    options = ["--json", "--num-blocks", "60", "--max-requests", "9"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout) == replayed(lengths, *options[1:])


def test_a_trace_is_read_from_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 2500, "input_length": 700, "output_length": 9, "hash_ids": [0, 1]},
        {"hash_ids": [0, 2, 3]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_trace(path) == [Entry([0, 1], 700, 9, 2.5), Entry([0, 2, 3], 1536, 1)]


def test_ids_may_be_any_integers(trace: Path, tmp_path: Path) -> None:
    """They are names: what a replay finds depends on which are equal alone."""
    hashes = tmp_path / "hashes.jsonl"
    with hashes.open("w") as file:
        for line in trace.read_text().splitlines():
            record = json.loads(line)
            record["hash_ids"] = [(number - 7) * (2**64 + 13) for number in record["hash_ids"]]
            file.write(json.dumps(record) + "\n")
    for together in (1, 8):
        options = ["--num-blocks", 200, "--max-sequences", together, "--max-requests", 60]
        assert replayed(hashes, *options)[hashes.name] == replayed(trace, *options)[trace.name]


def test_lengths_of_0_count_as_1_however_requests_run(tmp_path: Path) -> None:
    lines, table = tmp_path / "trace.jsonl", tmp_path / "lengths.csv"
    empty = '{"input_length": 0, "output_length": 0, "hash_ids": []}\n'
    lines.write_text(empty + '{"input_length": 512, "output_length": 1, "hash_ids": [0]}\n' * 2 + empty)
    table.write_text("ContextTokens,GeneratedTokens\n0,1\n512,1\n512,1\n1,0\n")
    for path, num_hits in (lines, 512), (table, 0):
        assert [entry.prompt_len for entry in read_trace(path)] == [1, 512, 512, 1]
        assert {entry.num_generated for entry in read_trace(path)} == {1}
        for together in (1, 2):
            options = ["--max-sequences", together, "--num-blocks", 99, "--block-size", 16]
            (row,) = replayed(path, *options)[path.name]
            assert row["num_requests"] == 4
            # One token of a prompt is always computed; requests that come one at a time leave that out.
            least = num_hits - 16 * (together > 1) if num_hits else 0
            assert row["hit_percent"] == pytest.approx(100 * least / 1026)
    (row,) = replayed(lines, "--num-blocks", 99)[lines.name]
    assert row["block_size"] == 512, "ids, though the first request has none"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('\n{"hash_ids": [1]}\n\n{"input_length": 600, "hash_ids": [1]}', 4, "600 tokens do not have 1 ids"),
        ('{"input_length": 600, "hash_ids": []}', 1, "600 tokens do not have 0 ids"),
        ('{"input_length": -1, "hash_ids": []}', 1, "prompt_len must be at least 1, not -1"),
        ('{"hash_ids": [1], "output_length": -3}', 1, "num_generated must be at least 1, not -3"),
        ('{"hash_ids": [1], "timestamp": NaN}', 1, "seconds must be finite, not nan"),
        ('{"hash_ids": [1], "timestamp": 1' + "0" * 400 + "}", 1, "OverflowError"),
        ('{"hash_ids": "12"}', 1, "a line must be an object whose hash_ids are a list"),
        ('{"hash_ids": ["x"]}', 1, "ValueError"),
        ('{"hash_ids": ' + "[" * 100_000, 1, "RecursionError"),
        ("[1, 2]", 1, "a line must be an object whose hash_ids are a list"),
        ('{"length": 3}', 1, "KeyError 'hash_ids'"),
        ('{"hash_ids": [1]}\n[1]\n', 2, "a line must be an object whose hash_ids are a list"),
        ("a,b\n1,2\n", 2, "KeyError 'ContextTokens'"),
        ("ContextTokens,GeneratedTokens\n1,1\n1,many\n", 3, "ValueError"),
        ("ContextTokens,GeneratedTokens\n1,1\n1\n", 3, "TypeError"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", 2, "ValueError"),
    ],
)
def test_what_is_no_trace_is_named_with_its_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    path = tmp_path / "wrong"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=re.escape(f"{path}, line {line}, is no trace: {what}")) as caught:
        read_trace(path)
    result = runner.invoke(app, ["replay", str(path)])
    assert (result.exit_code, result.stderr) == (1, f"looseleaf: {caught.value}\n")


def test_a_mark_of_the_byte_order_is_no_part_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "marked"
    path.write_text("\ufeffContextTokens,GeneratedTokens\n10,5\n", encoding="utf-8")
    assert read_trace(path) == [Entry(None, 10, 5)]


def test_a_file_that_is_no_text_or_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match=re.escape(f"{path} is no trace: UnicodeDecodeError")):
        read_trace(path)
    assert runner.invoke(app, ["replay", str(tmp_path / "none")]).exit_code == 2


def test_wrong_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="must divide 512 or be multiples of it"):
        Replay([Entry([1], 512, 1)], [48])
    with pytest.raises(InvalidArgument, match="prompt_len must be at least 1, not 0"):
        Entry(None, 0, 1)
    with pytest.raises(InvalidArgument, match="must have a request"):
        Replay([], [16])
    (tmp_path / "empty.csv").write_text("ContextTokens,GeneratedTokens\n")
    assert runner.invoke(app, ["replay", str(tmp_path / "empty.csv")]).exit_code == 1
