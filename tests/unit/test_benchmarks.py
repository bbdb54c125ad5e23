"""What the benchmarks make of their measurements; nothing is timed here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import ours, throughput
from benchmarks.flops import training_flops
from benchmarks.throughput import Pair
from tests.tiny import write_tiny_gemma3
from tunesmith.errors import UserError
from tunesmith.models.catalog import GEMMA3_SIZES, parse_gemma3
from tunesmith.recipe.schema import LoraSection
from tunesmith.runs.metrics import Line

GEMMA_270M = parse_gemma3(GEMMA3_SIZES["270m"], Path("config.json"), weight_prefix="model.")
BACKBONE, HEAD, ADAPTERS = 100_270_080, 167_772_160, 3_796_992  # of 270M; adapters with r = 16


def printing(text: str) -> list[str]:
    """A command that prints a text."""
    return [sys.executable, "-c", f"print({text!r})"]


# -- operations -----------------------------------------------------------------------------------


def test_full_fine_tuning_counts_three_passes_and_the_head_on_targets_alone() -> None:
    assert training_flops(GEMMA_270M, None, 1, 0) == 6 * BACKBONE
    assert training_flops(GEMMA_270M, None, 1000, 300) == 6 * (1000 * BACKBONE + 300 * HEAD)


def test_lora_saves_the_gradients_of_frozen_weights() -> None:
    lora = LoraSection(r=16)
    assert training_flops(GEMMA_270M, lora, 1, 0) == 4 * BACKBONE + 6 * ADAPTERS
    assert training_flops(GEMMA_270M, lora, 0, 1) == 4 * HEAD


def test_only_the_adapted_projections_count() -> None:
    lora = LoraSection(r=2, targets=["q_proj"])
    assert training_flops(GEMMA_270M, lora, 1, 0) == 4 * BACKBONE + 6 * 18 * 2 * (640 + 1024)


# -- what commands print --------------------------------------------------------------------------


def test_the_last_line_counts_whatever_stands_before_it() -> None:
    finished = throughput.run(printing('loading\n{"a": 1}\n{"real_tokens_per_s": 49.5}\n'))
    assert finished.printed == {"real_tokens_per_s": 49.5}
    # Bytes, not kilobytes. Linux counts the size of whoever starts a process, here of all tests.
    assert 2**20 < finished.peak_rss_bytes < 2**36


def test_a_string_goes_through_the_shell() -> None:
    assert throughput.run("""A=7; echo "{\\"a\\": $A}" """).printed == {"a": 7}


@pytest.mark.parametrize("text", ["", "done", "[1]", '{"a": 1}\ndone'])
def test_a_command_without_figures_is_named(text: str) -> None:
    with pytest.raises(UserError, match=r"not a JSON object(.|\n)*printed by"):
        throughput.run(printing(text))


def test_a_command_that_fails_shows_its_last_words() -> None:
    with pytest.raises(UserError, match=r"exit status 3 of: (.|\n)*no such model"):
        throughput.run("echo no such model >&2; exit 3")


@pytest.mark.parametrize(
    ("printed", "share", "rate"),
    [
        ({"real_tokens_per_s": 49, "batch": 8}, None, 49.0),
        ({"padded_tokens_per_s": 80.0}, 0.75, 60.0),
        # Another commit of ours can be the baseline.
        ({"real_tokens_per_second": 9.0, "target_tokens_per_second": 3.0}, None, 9.0),
    ],
)
def test_rate_in_real_tokens(printed: dict[str, Any], share: float | None, rate: float) -> None:
    assert throughput.real_rate(printed, share) == rate


@pytest.mark.parametrize(
    ("printed", "share", "told"),
    [
        ({"speed": 49.5}, None, "but has none among speed"),
        ({"a_tokens_per_s": 1, "b_tokens_per_s": 2}, None, "a_tokens_per_s, b_tokens_per_s"),
        ({"real_tokens_per_s": "49"}, None, "but has none"),
        ({"real_tokens_per_s": 0.0}, None, "a rate is above 0"),
        ({"real_tokens_per_s": float("nan")}, None, "a rate is above 0"),
        ({"padded_tokens_per_s": 80.0}, None, "counts padding too"),
        ({"real_tokens_per_s": 49.5}, 0.75, "does not say that it counts padding"),
    ],
)
def test_doubtful_rates_are_refused(
    printed: dict[str, Any], share: float | None, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        throughput.real_rate(printed, share)


# -- figures --------------------------------------------------------------------------------------


def test_steps_after_the_warm_up_make_the_rate() -> None:
    lines = [
        Line("train", step, loss, tokens=tokens, target_tokens=targets, step_seconds=seconds)
        for step, (loss, tokens, targets, seconds) in enumerate(
            [(3.0, 100, 50, 12.0), (2.5, 90, 40, 1.0), (2.0, 110, 60, 3.0)], 1
        )
    ]
    figures = ours.summarise(lines, warmup=1)
    assert figures["real_tokens_per_second"] == 50.0  # 200 tokens in 4 s; no mean of 90 and 36.7
    assert figures["target_tokens_per_second"] == 25.0
    assert figures["compile_seconds"] == 10.0  # 12 s, of which a step's median of 2 s
    assert figures["losses"] == [3.0, 2.5, 2.0]


def test_ratios_are_taken_pair_by_pair() -> None:
    """A machine that slows down for a while slows both of a pair."""
    pairs = [Pair(100, 50, 7, 9), Pair(40, 10, 8, 9), Pair(90, 30, 7, 10)]
    matmul = [
        {"float32": {"a": 50.0, "b": 100.0}, "bfloat16": {"a": 20.0}},
        {"float32": {"a": 60.0, "b": 80.0}, "bfloat16": {"a": 30.0}},
    ]
    printed = {"compute_dtype": "float32", "flops_per_token": 500_000_000}
    figures = throughput.compare(pairs, printed, matmul)
    # Not 90 / 30, the ratio of the medians.
    assert figures["ratio"] == {"median": 3.0, "min": 2.0, "max": 4.0, "each": [2.0, 4.0, 3.0]}
    rates = figures["real_tokens_per_second"]
    assert rates["ours"] == {"median": 90, "min": 40, "max": 100, "each": [100, 40, 90]}
    assert rates["baseline"]["median"] == 30
    assert figures["peak_rss_bytes"] == {"ours": 8, "baseline": 10}
    assert figures["ceiling_gflops"] == {"float32": 100.0, "bfloat16": 30.0}
    # 90 tokens/s × 0.5 GFLOP = 45 of 100 GFLOP/s.
    assert figures["share_of_ceiling"] == {"ours": 0.45, "baseline": 0.15}


def test_a_few_real_steps_are_taken_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe's own loop runs, and leaves no checkpoint behind."""
    model = write_tiny_gemma3(tmp_path / "model")
    story = "once upon a time there was a little girl named amy"
    (tmp_path / "stories.txt").write_text("|".join(f"{story} {n}" for n in range(6)))
    sets = [
        "model.source=dir",
        f"model.id={model}",
        f"data.train.files=[{tmp_path / 'stories.txt'}]",
        "data.train.separator='|'",
        "data.max_length=64",
        "train.batch_size=2",
        "train.compute_dtype=float32",
    ]
    flags = [part for value in sets for part in ("--set", value)]
    assert ours.main(["tinystories-gemma3-270m", *flags, "--steps", "2"]) == 0
    printed = throughput.last_object(capsys.readouterr().out, "ours")
    assert len(printed["losses"]) == 3
    assert len(printed["tokens"]) == len(printed["step_seconds"]) == 2
    # Every token but each story's first is a target.
    assert 0 < printed["target_tokens"][0] < printed["tokens"][0] <= 2 * 64
    assert throughput.rate_field(printed) == "real_tokens_per_second"
    assert printed["compute_dtype"] == "float32"


def test_bad_input_is_told_as_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert ours.main(["nosuch"]) == 2
    assert "error: no recipe is called 'nosuch'" in capsys.readouterr().err
