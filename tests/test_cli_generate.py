from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
import torch
from typer.testing import CliRunner

from looseleaf.cli.app import app
from looseleaf.cli.generate import generate
from looseleaf.engine import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

pytestmark = pytest.mark.usefixtures("one_thread")

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(
    tiny_model: PreTrainedModel,
    tiny_tokenizer: PreTrainedTokenizerBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    path = tmp_path_factory.mktemp("model")
    tiny_model.save_pretrained(path)
    tiny_tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture
def interrupt_after() -> Iterator[list[int]]:
    """Press Ctrl-C in the forward pass with the number that the test appends."""
    at: list[int] = []
    num_calls = 0

    def count(module: torch.nn.Module, _arguments: object) -> None:
        nonlocal num_calls
        if type(module).__name__ == "LlamaForCausalLM":
            num_calls += 1
            if num_calls in at:
                signal.raise_signal(signal.SIGINT)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(count)
    # A process that was started in the background ignores the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield at
    signal.signal(signal.SIGINT, before)
    handle.remove()


def test_texts_then_a_report(folder: str) -> None:
    result = runner.invoke(app, ["generate", "--model", folder, "--max-new-tokens", "5", "One", "[red]Two[/red]"])
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    assert "[1] One\n" in result.stdout
    assert "[2] [red]Two[/red]\n" in result.stdout
    assert "requests finished" in result.stdout
    assert "2 of 2" in result.stdout


def test_weights_and_cache_may_have_another_dtype(folder: str) -> None:
    arguments = ["--num-blocks", "4", "--max-new-tokens", "2", "--json", "One"]
    reports = [
        json.loads(runner.invoke(app, ["generate", "--model", folder, "--dtype", dtype, *arguments]).stdout)["report"]
        for dtype in ("float32", "bf16")
    ]
    assert reports[0]["paged_bytes"] == 2 * reports[1]["paged_bytes"] > 0


def test_without_prompts_a_built_in_set_is_answered(folder: str) -> None:
    result = runner.invoke(app, ["generate", "--model", folder, "--max-new-tokens", "2", "--json"])
    document = json.loads(result.stdout)
    assert document["report"]["num_finished"] == len({answer["prompt"] for answer in document["results"]}) == 8


def test_json_is_the_whole_output(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("from a file\n\n  \nand a füll line\n", encoding="utf-8")
    arguments = ["--file", str(file), "--num-blocks", "9", "--max-new-tokens", "5", "--block-size", "8", "--json"]
    result = runner.invoke(app, ["generate", "--model", folder, "first", *arguments])
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert [answer["prompt"] for answer in document["results"]] == ["first", "from a file", "and a füll line"]
    assert [answer["index"] for answer in document["results"]] == [0, 1, 2]
    assert all(1 <= len(answer["token_ids"]) <= 5 for answer in document["results"])
    assert document["report"]["num_blocks"] == 9
    assert document["report"]["num_finished"] == 3


def test_a_prompt_that_never_fits_is_told_and_the_others_are_answered(folder: str) -> None:
    arguments = ["generate", "--model", folder, "--num-blocks", "2", "--max-new-tokens", "5", "x" * 40, "short"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert "refused: need 3 blocks, the pool has 2" in result.stdout
    assert "1 of 2" in result.stdout
    answers = json.loads(runner.invoke(app, [*arguments, "--json"]).stdout)["results"]
    assert [answer["error"] for answer in answers] == ["need 3 blocks, the pool has 2", None]


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_keeps_what_is_finished(folder: str, interrupt_after: list[int], as_json: bool) -> None:
    interrupt_after.append(8)
    prompts = ["one at a time " * 2, "because of the blocks " * 2]
    arguments = ["generate", "--model", folder, "--num-blocks", "4", "--max-new-tokens", "5", *prompts]
    result = runner.invoke(app, [*arguments, "--json"] if as_json else arguments)
    assert result.exit_code == 130
    assert result.stderr == "looseleaf: interrupted\n"
    if as_json:
        document = json.loads(result.stdout)
        assert [answer["index"] for answer in document["results"]] == [0]
        assert (document["report"]["num_finished"], document["report"]["num_requests"]) == (1, 2)
    else:
        assert "[1] " in result.stdout
        assert "[2] " not in result.stdout
        assert "1 of 2" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-new-tokens", "0"], "Invalid value for '--max-new-tokens'"),
        (["--num-blocks", "4", "--memory", "1GiB"], "--num-blocks and --memory cannot be given together"),
        (["--memory", "much"], "memory cannot be 'much'"),
        (["--dtype", "int8"], "dtype must be one of"),
        (["--file", "no-such-file"], "no-such-file"),
        (["--model", "no-such-folder"], "no-such-folder"),
        (["--device", "gpu"], "--device gpu: Expected one of cpu, cuda"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    result = runner.invoke(app, ["generate", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_prompts_may_come_from_stdin(folder: str) -> None:
    arguments = ["generate", "--model", folder, "--max-new-tokens", "2", "--json", "first", "--file", "-"]
    result = runner.invoke(app, arguments, input="from stdin\n\nand a füll line\n")
    assert result.exit_code == 0, result.stderr
    prompts = [answer["prompt"] for answer in json.loads(result.stdout)["results"]]
    assert prompts == ["first", "from stdin", "and a füll line"]
    result = runner.invoke(app, ["generate", "--model", folder, "--file", "-"], input="\n")
    assert (result.exit_code, result.stderr) == (2, "looseleaf: Invalid value: --file - holds no prompt\n")


# The meta device is in every torch, and computes nothing.
@pytest.mark.parametrize("command", [["generate", "One"], ["bench", "engine", "--quick"]], ids=lambda one: one[0])
def test_a_device_that_torch_cannot_use_is_one_line_before_a_model_is_loaded(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--device", "meta"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("looseleaf: --device meta: torch cannot compute on it here: ")
    assert result.stderr.count("\n") == 1


def test_the_device_reaches_the_model(folder: str) -> None:
    found: set[str] = set()

    def look(module: torch.nn.Module, _arguments: object) -> None:
        found.update(str(one.device) for one in module.parameters())

    handle = torch.nn.modules.module.register_module_forward_pre_hook(look)
    arguments = ["generate", "--model", folder, "--max-new-tokens", "2", "One"]
    for device in ["cpu"] + ["cuda:0"] * torch.cuda.is_available():
        found.clear()
        assert runner.invoke(app, [*arguments, "--device", device]).exit_code == 0
        assert found == {device}
    handle.remove()


def test_a_file_without_a_prompt_is_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.write_text("\n\n")
    result = runner.invoke(app, ["generate", "--file", str(file)])
    assert result.exit_code == 2
    assert "holds no prompt" in result.stderr
    file.write_bytes(b"\xff\xfe\xff")
    result = runner.invoke(app, ["generate", "--file", str(file)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_folder_without_a_model_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    result = runner.invoke(app, ["generate", "--model", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(tmp_path) in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_pool_without_a_block_is_one_line_and_exit_code_1(folder: str) -> None:
    result = runner.invoke(app, ["generate", "--model", folder, "--memory", "1KiB"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "1024 bytes" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package_is_one_line_with_the_command_that_installs_it(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import looseleaf.cli; looseleaf.cli.main()"
    result = subprocess.run([sys.executable, "-c", code, "generate", "Hi"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    expected = f'the package {package} is missing; install it with: pip install "looseleaf[transformers]"'
    assert result.stderr == f"looseleaf: {expected}\n"


@pytest.mark.model
def test_the_real_model_answers() -> None:
    command = [sys.executable, "-m", "looseleaf.cli", "generate", "What is the capital of France?", "Say hello."]
    result = subprocess.run(
        [*command, "--max-new-tokens", "12", "--num-blocks", "16", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr in ("", "looseleaf: converting SmolLM2, once; this takes a while\n")
    document = json.loads(result.stdout)
    assert "Paris" in document["results"][0]["text"]
    assert document["report"]["num_finished"] == 2


def test_sampling_options_reach_the_engine(folder: str) -> None:
    common = ["generate", "--model", folder, "--max-new-tokens", "12", "--json", "One", "Two"]
    sampled = [*common, "--temperature", "1.2", "--top-p", "0.9", "--seed", "5", "--n", "2", "--logprobs", "3"]
    documents = [json.loads(runner.invoke(app, arguments).stdout) for arguments in (common, sampled, sampled)]
    greedy, first, second = [[one["token_ids"] for one in document["results"]] for document in documents]
    assert first == second
    assert len(first) == 4
    assert greedy[0] not in first
    one = documents[1]["results"][1]
    assert (one["index"], one["sample"]) == (0, 1)
    assert len(one["logprobs"]) == len(one["token_ids"])
    assert [len(logprobs["top"]) for logprobs in one["logprobs"]] == [3] * len(one["token_ids"])
    assert one["timings"]["finished"] > 0


def test_every_field_of_the_parameters_has_an_option() -> None:
    renamed = {
        "max_tokens": "max_new_tokens",
        "min_tokens": "min_new_tokens",
        "stop_token_ids": "stop_token_id",
        "prompt_lookup_num_tokens": "prompt_lookup",
    }
    names = {renamed.get(field.name, field.name) for field in fields(SamplingParams)}
    assert len(names) > 20
    without = {"expected_tokens", "logits_processors"}  # a hint to the scheduler, and code
    assert names - set(inspect.signature(generate).parameters) == without


def test_where_an_answer_ends_can_be_told(folder: str) -> None:
    common = ["generate", "--model", folder, "--max-new-tokens", "8", "--json", "One"]

    def answer(*options: str) -> dict[str, Any]:
        result = runner.invoke(app, [*common, *options])
        assert result.exit_code == 0, result.stderr
        (one,) = json.loads(result.stdout)["results"]
        assert isinstance(one, dict)
        return one

    plain = answer("--ignore-eos")["token_ids"]
    assert len(set(plain)) > 2
    last = plain[2]
    stopped = answer("--ignore-eos", "--stop-token-id", "258", "--stop-token-id", str(last))
    assert (stopped["token_ids"], stopped["finish_reason"]) == (plain[: plain.index(last) + 1], "stop")
    eos = answer("--logit-bias", "2=1e3", "--logit-bias", "7=-1.5")
    assert (eos["token_ids"], eos["finish_reason"]) == ([2], "stop")
    longer = answer("--logit-bias", "2=1000", "--ignore-eos")
    assert (longer["token_ids"], longer["finish_reason"]) == ([2] * 8, "length")


def test_logprobs_of_a_prompt_can_be_asked_for(folder: str) -> None:
    arguments = ["generate", "--model", folder, "--max-new-tokens", "2", "--json", "One", "--prompt-logprobs", "2"]
    (one,) = json.loads(runner.invoke(app, arguments).stdout)["results"]
    assert len(one["prompt_logprobs"]) == one["num_prompt_tokens"] - 1 > 0
    assert all(len(logprobs["top"]) == 2 for logprobs in one["prompt_logprobs"])
    assert one["logprobs"] is None


def test_a_beam_search_can_be_tuned(folder: str) -> None:
    common = ["generate", "--model", folder, "--max-new-tokens", "6", "--json", "One", "--num-beams", "3"]
    scores = []
    for options in ([], ["--length-penalty", "0"], ["--early-stopping", "never"], ["--early-stopping", "true"]):
        result = runner.invoke(app, [*common, *options])
        assert result.exit_code == 0, result.stderr
        scores.append(json.loads(result.stdout)["results"][0]["score"])
    assert scores[0] == pytest.approx(scores[1] / 6)


def test_what_changes_logits_goes_with_beams(folder: str) -> None:
    common = ["generate", "--model", folder, "--max-new-tokens", "24", "--json", "One", "--num-beams", "3"]
    answers = []
    for options in (
        [],
        ["--repetition-penalty", "1.8"],
        ["--frequency-penalty", "-2"],
        ["--presence-penalty", "-2"],
        ["--logit-bias", "2=1e3"],
        ["--logit-bias", "2=1e3", "--min-new-tokens", "6"],
    ):
        result = runner.invoke(app, [*common, *options])
        assert result.exit_code == 0, result.stderr
        answers.append(json.loads(result.stdout)["results"][0]["token_ids"])
    assert all(answer != answers[0] for answer in answers[1:])
    assert [len(answer) for answer in answers[-2:]] == [1, 7]


def test_beams_and_drafts_and_a_swap_space_can_be_asked_for(folder: str) -> None:
    common = ["generate", "--model", folder, "--max-new-tokens", "6", "--json", "One", "--no-prefix-cache"]
    options: list[list[str]] = [[], ["--prompt-lookup", "3", "--swap-memory", "1MiB", "--max-batch-tokens", "7"]]
    texts = [json.loads(runner.invoke(app, [*common, *one]).stdout)["results"][0]["token_ids"] for one in options]
    assert texts[0] == texts[1]
    document = json.loads(runner.invoke(app, [*common, "--num-beams", "3", "--n", "3"]).stdout)
    scores = [result["score"] for result in document["results"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_the_report_tells_of_drafts_and_swaps_where_there_are_any(folder: str) -> None:
    common = ["generate", "--model", folder, "--max-new-tokens", "24", "--block-size", "4"]
    prompts = ["One prompt", "Two prompts", "And a third"]
    swaps = ["--num-blocks", "14", "--preemption", "swap", "--swap-memory", "1MiB"]
    for options, words in (
        ([], []),
        (["--prompt-lookup", "3"], ["drafted tokens", "of them right"]),
        (swaps, ["of them by swap"]),
    ):
        text = runner.invoke(app, [*common, *options, *prompts]).stdout
        assert "preemptions" in text
        found = [word for word in ("drafted tokens", "of them right", "of them by swap") if word in text]
        assert found == words


def test_what_becomes_of_preempted_blocks_changes_no_answer(folder: str) -> None:
    common = ["generate", "--model", folder, "--max-new-tokens", "24", "--block-size", "4", "--json"]
    prompts = ["One prompt", "Two prompts", "And a third"]
    documents = [
        json.loads(runner.invoke(app, [*common, *options, *prompts]).stdout)
        for options in (
            ["--num-blocks", "200"],
            ["--num-blocks", "14", "--preemption", "recompute"],
            ["--num-blocks", "14", "--preemption", "swap", "--swap-memory", "1MiB"],
        )
    ]
    answers = [[one["token_ids"] for one in document["results"]] for document in documents]
    assert answers[0] == answers[1] == answers[2]
    assert [document["report"]["num_preemptions"] > 0 for document in documents] == [False, True, True]
    for document in documents:
        total = sum(one["num_preemptions"] for one in document["results"])
        assert total == document["report"]["num_preemptions"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "-1"], "temperature must be in"),
        (["--top-p", "2"], "top_p must be in"),
        (["--min-new-tokens", "99", "--max-new-tokens", "3"], "min_tokens must be at most"),
        (["--num-beams", "2", "--temperature", "1"], "temperature cannot be together"),
        (
            ["--num-beams", "2", "--prompt-lookup", "1", "--stop", "x"],
            "prompt_lookup_num_tokens, stop cannot be together",
        ),
        (["--num-beams", "2", "--json", "--logprobs", "0"], "logprobs cannot be together"),
        (["--length-penalty", "2"], "length_penalty is for num_beams above 1"),
        (["--early-stopping", "never"], "early_stopping is for num_beams above 1"),
        (["--early-stopping", "maybe"], "Invalid value for '--early-stopping'"),
        (["--logit-bias", "5"], "--logit-bias must be ID=NUMBER, not '5'"),
        (["--logit-bias", "x=5"], "--logit-bias must be ID=NUMBER, not 'x=5'"),
        (["--logit-bias", "5=nan"], "logit_bias[5] must be in"),
        (["--stop-token-id", "-1"], "stop_token_ids must be at least 0"),
        (["--prompt-logprobs", "-1", "--json"], "prompt_logprobs must be at least 0"),
        (["--prompt-logprobs", "0"], "--logprobs and --prompt-logprobs need --json"),
        (["--logprobs", "2", "--stream"], "--logprobs and --prompt-logprobs need --json"),
        (["--swap-memory", "much"], "memory cannot be 'much'"),
        (["--stream", "--json"], "cannot be given together"),
        (["--preemption", "swap"], "--preemption swap needs --swap-memory"),
        (["--preemption", "none"], "Invalid value for '--preemption'"),
    ],
)
def test_wrong_sampling_options_are_wrong_usage(folder: str, options: list[str], message: str) -> None:
    result = runner.invoke(app, ["generate", "--model", folder, "One", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_a_stream_of_one_answer_is_its_text(folder: str) -> None:
    common = ["generate", "--model", folder, "--max-new-tokens", "9"]
    text = json.loads(runner.invoke(app, [*common, "--json", "One"]).stdout)["results"][0]["text"]
    result = runner.invoke(app, [*common, "--stream", "One"])
    assert result.exit_code == 0
    assert result.stdout.startswith(text)
    assert "requests finished" in result.stdout[len(text) :]


def test_a_stream_tells_why_there_is_no_answer(folder: str) -> None:
    common = ["generate", "--model", folder, "--num-blocks", "2", "--max-new-tokens", "5", "--stream"]
    for prompts, number in (["x" * 40], ""), (["x" * 40, "short"], "[1] "):
        result = runner.invoke(app, [*common, *prompts])
        assert (result.exit_code, result.stderr) == (1, "")
        assert f"{number}refused: need 3 blocks, the pool has 2" in result.stdout.splitlines()
    assert not runner.invoke(app, [*common, "x" * 40]).stdout.startswith("\n")


def test_a_stream_that_fails_tells_why_below_its_text(folder: str) -> None:
    num_calls = 0

    def fail(module: torch.nn.Module, _arguments: object) -> None:
        nonlocal num_calls
        if type(module).__name__ == "LlamaForCausalLM":
            num_calls += 1
            if num_calls > 3:
                raise ValueError("no more")

    handle = torch.nn.modules.module.register_module_forward_pre_hook(fail)
    result = runner.invoke(app, ["generate", "--model", folder, "--max-new-tokens", "9", "--stream", "One"])
    handle.remove()
    assert result.exit_code == 1
    text, _, rest = result.stdout.partition("\nrefused: no more\n")
    assert text.strip()
    assert "0 of 1" in rest


def test_a_stream_of_several_answers_comes_in_lines_with_their_numbers(folder: str) -> None:
    common = ["generate", "--model", folder, "--max-new-tokens", "9"]
    texts = [one["text"] for one in json.loads(runner.invoke(app, [*common, "--json", "A", "B"]).stdout)["results"]]
    lines = runner.invoke(app, [*common, "--stream", "A", "B"]).stdout.split("\n")
    for number, text in enumerate(texts, start=1):
        prefix = f"[{number}] "
        own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        assert "\n".join(own) == text.removesuffix("\n")
