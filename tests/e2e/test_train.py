"""`tunesmith train`: run folders, second starts, formats. G numbers: known ways to go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.event_files import read_scalars
from tests.tiny import write_tiny_gemma3
from tests.tiny_run import (
    read_lines,
    read_summary,
    sentences,
    tunesmith,
    write_lines,
    write_recipe,
)
from tunesmith.runs.rundir import read_json

AGREED = {
    "version",
    "run_id",
    "engine",
    "status",
    "before",
    "after",
    "tokens_per_second",
    "target_tokens",
    "peak_bytes",
    "seconds",
    "export",
    "hub",
}
FIGURES = {"loss", "exact_match", "execution_accuracy"}
QUICK: dict[str, Any] = {"train": {"max_steps": 2}, "run": {"export": "none"}}


def quick(**sections: Any) -> dict[str, Any]:
    """Two steps of the shape that other tests compile too, nothing exported."""
    return {name: QUICK.get(name, {}) | sections.get(name, {}) for name in QUICK | sections}


# --- what a run leaves ---------------------------------------------------------------------------


def test_the_summary_has_the_agreed_fields(overfit: Path) -> None:
    summary = read_summary(overfit)
    assert summary.keys() >= AGREED
    assert summary["before"].keys() == summary["after"].keys() == FIGURES
    assert summary["export"].keys() == {"path", "max_logit_gap"}
    assert (summary["version"], summary["engine"], summary["status"]) == (1, "jax", "finished")
    assert summary["target_tokens"] == 40 * 18
    assert summary["export"]["path"] == str(overfit / "export")
    assert 0 < summary["export"]["max_logit_gap"] < 1e-3
    assert summary["tokens_per_second"] > 0
    assert summary["peak_bytes"] > 50 * 2**20
    assert summary["seconds"] > summary["train_seconds"] > 0


def test_figures_that_do_not_apply_are_null(tiny: Path, tmp_path: Path) -> None:
    assert tunesmith("train", write_recipe(tmp_path, tiny, **quick())) == 0
    summary = read_summary(tmp_path / "run")
    assert summary.keys() >= AGREED
    nothing = dict.fromkeys(FIGURES)
    assert (summary["before"], summary["after"]) == (nothing, nothing)
    assert summary["export"] == {"path": None, "max_logit_gap": None}
    assert summary["hub"] == {"url": None}


def test_the_run_folder_holds_all_that_a_run_was(overfit: Path) -> None:
    assert {path.name for path in overfit.iterdir()} == {
        "recipe.yaml",
        "manifest.json",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
        "evaluation",
        "samples.json",
        "export",
        "summary.json",
    }
    manifest = read_json(overfit / "manifest.json")
    assert manifest["run_id"] == read_summary(overfit)["run_id"]
    assert manifest["data"]["train"]["examples"] == 1
    assert {"jax", "tunesmith", "python"} <= manifest["versions"].keys()
    lines = read_lines(overfit / "metrics.jsonl")
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("train", 10),
        ("train", 20),
        ("eval", 20),
        ("train", 30),
        ("train", 40),
        ("eval", 40),
    ]
    after = read_json(overfit / "evaluation" / "after.json")
    assert after["text_to_sql"]["answers"] == ["SELECT max(age) FROM t"]
    assert after["loss"] == read_summary(overfit)["after"]["loss"]


def test_sql_is_scored_while_training(overfit: Path) -> None:
    """The weights of that step; before training nothing was right."""
    lines = read_lines(overfit / "metrics.jsonl")
    scores = {(line["kind"], line["execution_accuracy"], line["exact_match"]) for line in lines}
    assert scores == {("train", None, None), ("eval", 1.0, 1.0)}
    assert read_summary(overfit)["before"]["execution_accuracy"] == 0.0


def test_tensorboard_has_the_figures_of_the_metrics(overfit: Path) -> None:
    shown = {(tag, step): value for tag, step, value in read_scalars(overfit / "tensorboard")}
    lines = read_lines(overfit / "metrics.jsonl")
    figures = {
        (f"{line['kind']}/{name}", line["step"]): pytest.approx(line[name])
        for line in lines
        for name in ("loss", "learning_rate", "grad_norm", "execution_accuracy", "exact_match")
        if line[name] is not None
    }
    figures |= {
        ("train/tokens_per_second", line["step"]): pytest.approx(
            line["tokens"] / line["step_seconds"]
        )
        for line in lines
        if line["kind"] == "train"
    }
    assert shown == figures
    assert len(shown) == 4 * 4 + 2 * 3


# --- a second start ------------------------------------------------------------------------------


def test_a_finished_run_shows_its_result(overfit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in overfit.rglob("*")}
    assert tunesmith("train", overfit.parent / "recipe.yaml") == 0
    out = capsys.readouterr().out
    assert "is finished; its result:" in out
    assert "execution accuracy              0.0%      100.0%" in out
    assert "step 1/" not in out
    assert {path: path.stat().st_mtime_ns for path in overfit.rglob("*")} == before


def test_a_changed_recipe_is_refused(overfit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = tunesmith("train", overfit.parent / "recipe.yaml", "--set", "train.learning_rate=1e-4")
    assert code == 2
    error = capsys.readouterr().err
    assert f"error: {overfit} holds a run of another recipe" in error
    assert "train.learning_rate: 3e-3 -> 1e-4" in error
    assert "--fork NEW" in error


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when the metrics of a step are written."""
    from tunesmith.runs.metrics import Line, MetricsLog

    append = MetricsLog.append

    def interrupted(self: MetricsLog, line: Line) -> None:
        if line.kind == "train" and line.step == step:
            raise KeyboardInterrupt
        append(self, line)

    monkeypatch.setattr(MetricsLog, "append", interrupted)


def test_an_interrupted_run_goes_on(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 130; the same command goes on, and refuses data that changed meanwhile."""
    sections = quick(
        train={"max_steps": None, "checkpoints": {"every_steps": 1}, "batch_size": 4},
        eval={"prompts": ["once"], "generation": {"max_new_tokens": 8}},
    )
    recipe = write_recipe(tmp_path, tiny, **sections)
    with monkeypatch.context() as patch:
        stop_at(3, patch)
        assert tunesmith("train", recipe) == 130
    assert "interrupted; the same command goes on" in capsys.readouterr().err
    before = read_json(tmp_path / "run" / "samples.json")
    assert not (tmp_path / "run" / "summary.json").exists()

    rows = (tmp_path / "train.jsonl").read_text()
    write_lines(tmp_path / "train.jsonl", [{"text": "other rows"}] * 16)
    assert tunesmith("train", recipe) == 2
    assert "the data of" in (error := capsys.readouterr().err)
    assert "have changed since the run began" in error

    (tmp_path / "train.jsonl").write_text(rows)
    assert tunesmith("train", recipe) == 0
    out = capsys.readouterr().out
    assert "goes on after step 2 of 4" in out
    assert "measuring the model before training" not in out
    assert read_summary(tmp_path / "run")["status"] == "finished"
    (sample,) = read_json(tmp_path / "run" / "samples.json")
    assert sample["before"] == before[0]["before"]
    assert sample["after"] is not None
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]


def test_a_fork_takes_the_weights_along(
    overfit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a changed recipe, into a new folder; the old run stays as it was."""
    recipe, new = overfit.parent / "recipe.yaml", tmp_path / "new"
    before = (overfit / "summary.json").read_bytes()
    changes = ["--set", "train.max_steps=1", "--set", "run.export=none"]
    assert tunesmith("train", recipe, *changes, "--fork", new) == 0
    out = capsys.readouterr().out
    assert f"takes the weights of {overfit} after step 40" in out
    assert "WARNING" not in out  # G15's warning is for models that guess
    summary = read_summary(new)
    assert summary["before"]["loss"] == pytest.approx(read_summary(overfit)["after"]["loss"])
    assert summary["before"]["exact_match"] == 1.0
    assert summary["steps"] == 1
    assert (overfit / "summary.json").read_bytes() == before
    assert tunesmith("train", recipe, *changes, "--fork", new) == 0
    assert "is finished; its result:" in capsys.readouterr().out


def test_a_fork_needs_weights_and_a_new_folder(
    overfit: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("")
    recipe = overfit.parent / "recipe.yaml"
    assert tunesmith("train", recipe, "--fork", tmp_path / "full") == 2
    assert "is not empty" in capsys.readouterr().err
    fresh = write_recipe(tmp_path / "fresh", tiny)
    assert tunesmith("train", fresh, "--fork", tmp_path / "new") == 2
    assert "holds no checkpoint to take weights from" in capsys.readouterr().err


def test_divergence_is_told_and_kept(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G14: exit status 3, the step is named, the summary says so and nothing is exported."""
    sections = {"train": {"learning_rate": 3e38}, "data": {"holdout": {"rows": 2}}}
    recipe = write_recipe(tmp_path, tiny, **sections)
    assert tunesmith("train", recipe) == 3
    assert "error: step 2: loss nan, gradient norm nan: not finite" in capsys.readouterr().err
    summary = read_summary(tmp_path / "run")
    assert summary["status"] == "diverged"
    assert summary["before"]["loss"] > 5.0
    assert summary["after"] == dict.fromkeys(FIGURES)
    assert summary["export"] == {"path": None, "max_logit_gap": None}
    assert not (tmp_path / "run" / "export").exists()


def test_divergence_in_the_last_step_is_found_too(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G14: its loss is finite, but not what is measured behind it."""
    train = {"learning_rate": 3e38, "max_steps": 1}
    recipe = write_recipe(tmp_path, tiny, train=train, data={"holdout": {"rows": 2}})
    assert tunesmith("train", recipe) == 3
    assert "error: the evaluation loss over" in capsys.readouterr().err
    assert read_summary(tmp_path / "run")["status"] == "diverged"
    assert not (tmp_path / "run" / "export").exists()


# --- what can be trained -------------------------------------------------------------------------


def test_formats_and_files(tiny: Path, tmp_path: Path) -> None:
    """Text split at a separator, prompts with completions, a table with a template."""
    texts = sentences(16, longest=5)
    (tmp_path / "rows.txt").write_text("<|endoftext|>".join(texts), encoding="utf-8")
    pairs = [{"prompt": text, "completion": " the end"} for text in texts]
    write_lines(tmp_path / "pairs.jsonl", pairs)
    table = "".join(f'{number},"{text}"\n' for number, text in enumerate(texts))
    (tmp_path / "table.csv").write_text("number,text\n" + table, encoding="utf-8")
    kinds = {
        "text": {"files": ["rows.txt"], "format": "text", "separator": "<|endoftext|>"},
        "pairs": {"files": ["pairs.jsonl"], "format": "prompt_completion"},
        "table": {
            "files": ["table.csv"],
            "format": "template",
            "template": {"user": "{number}", "assistant": "{text}"},
        },
    }
    for name, rows in kinds.items():
        data = {"train": rows, "holdout": {"rows": 4}, "max_length": 64}
        run = {"dir": str(tmp_path / name)}
        recipe = write_recipe(tmp_path, tiny, **quick(data=data, run=run))
        assert tunesmith("train", recipe) == 0
        summary = read_summary(tmp_path / name)
        assert summary["after"]["loss"] < summary["before"]["loss"]
        assert summary["steps"] == 2


def test_one_text_step_of_a_multimodal_model(tmp_path: Path) -> None:
    """G16: on text rows, with the vision side left as it is."""
    base = write_tiny_gemma3(tmp_path / "base", prefix="language_model.model.", rope_scale=8.0)
    assert tunesmith("train", write_recipe(tmp_path / "rows", base, train={"max_steps": 1})) == 0
    summary = read_summary(tmp_path / "rows" / "run")
    assert summary["steps"] == 1
    assert summary["export"]["max_logit_gap"] < 1e-3
