"""`tunesmith train`: from a recipe to a finished run, or on from where one stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tunesmith.engines.contract import Engine, Say, Session, TrainResult, load_engine
from tunesmith.errors import Diverged, UserError
from tunesmith.evaluate import (
    Evaluation,
    answer_prompts,
    check_sql_fields,
    evaluate,
    measure_while_training,
)
from tunesmith.export import Export, export
from tunesmith.models.gguf import origin_note
from tunesmith.prepare import Prepared, prepare_run, run_dir
from tunesmith.publish import check_hub, push
from tunesmith.recipe.load import LoadedRecipe, diff_recipes, dump_recipe, load_recipe
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.metrics import MetricsLog
from tunesmith.runs.rundir import VERSION, RunDir, make_manifest, read_json, write_json, write_text
from tunesmith.runs.tensorboard import EventFiles
from tunesmith.tasks.samples import Sample


def start_processes(
    loaded: LoadedRecipe, arguments: Sequence[str], say: Say, *, fork: Path | None = None
) -> int | None:
    """Train in one process for each device, where the engine needs that.

    Model and data are made ready before, so that they are fetched and tokenised once, and what is
    wrong with them is told once.

    Args:
        loaded: the recipe.
        arguments: of the command that each process runs.
        say: told what goes on.
        fork: as for `train_recipe`.

    Returns:
        The exit status; None if this process is to train by itself.
    """
    run = run_dir(loaded.recipe)
    if fork:
        run = _new_run(run, fork)
    _refuse_changed_recipe(run, loaded.recipe)
    if is_finished(run):
        return None
    engine = load_engine(loaded.recipe.engine)
    count = engine.processes()
    if count is None:
        return None
    _check_outlets(run, loaded.recipe, say)
    prepared = prepare_run(loaded, say)
    check_sql_fields(loaded.recipe, prepared.data)
    say(f"starting {count} process{'es' * (count > 1)}")
    return engine.launch(count, arguments)


def train_recipe(
    loaded: LoadedRecipe, say: Say, *, fork: Path | None = None
) -> dict[str, Any] | None:
    """Run a recipe to its end, or show the result of a finished run.

    Args:
        loaded: the recipe.
        say: told what goes on.
        fork: a new run folder that starts from the weights of the recipe's run folder.

    Returns:
        The run's summary (`summary.json`); None on the processes of a run that do not write.

    Raises:
        UserError: bad input, or the run folder holds a run with another recipe or other data.
        Diverged: training stopped at a loss or gradient that was not finite.
    """
    begun = time.perf_counter()
    recipe, run = loaded.recipe, run_dir(loaded.recipe)
    source = run if fork else None
    if fork:
        run = _new_run(run, fork)
    _refuse_changed_recipe(run, recipe)
    if is_finished(run):
        return _finished(run, recipe, say)

    engine = load_engine(recipe.engine)
    writes = engine.start()
    say = say if writes else _say_nothing
    if writes:
        _check_outlets(run, recipe, say)
    board = EventFiles(run.tensorboard) if recipe.run.tensorboard else None
    log = MetricsLog(run.metrics, writes=writes, board=board)
    prepared = prepare_run(loaded, say)
    check_sql_fields(recipe, prepared.data)
    for line in [*prepared.data.train_stats.lines(), *prepared.data.warnings]:
        say(f"  {line}")
    manifest = _open_run(run, loaded, prepared, writes)
    say("loading the model")
    session = engine.open_trainer(recipe, prepared.model_dir)
    if source and not run.checkpoints.exists():
        session.take_weights(source, say, use_best=recipe.run.use_best)
    before = _before(session, run, recipe, prepared, writes, say)

    measure = measure_while_training(session, recipe, prepared.data, prepared.tokenizer, say)
    try:
        with closing(log):
            result = engine.train(session, recipe, prepared.data, run, log, say, measure=measure)
        after = _after(session, run, recipe, prepared, writes, say)
    except Diverged:
        if writes:
            summary = _summary(manifest, recipe, "diverged", before, engine=engine)
            write_json(run.summary, summary | {"seconds": time.perf_counter() - begun})
        raise
    exported = _export(session, run, recipe, prepared, writes, say)
    summary = _summary(manifest, recipe, "finished", before, after, result, exported, engine=engine)
    summary["seconds"] = time.perf_counter() - begun
    if writes:
        write_json(run.summary, summary)
        if recipe.run.push_to_hub:
            _push(run, recipe, summary, say)
    return summary if writes else None


def _check_outlets(run: RunDir, recipe: Recipe, say: Say) -> None:
    """See that all that is to come out of the run can, before it has cost anything."""
    if recipe.run.tensorboard:
        EventFiles(run.tensorboard)
    if recipe.run.push_to_hub:
        check_hub(recipe, say)


def _finished(run: RunDir, recipe: Recipe, say: Say) -> dict[str, Any]:
    """The result of a finished run; what it could not push when it ended is pushed now."""
    summary = read_json(run.summary)
    pushed = summary.get("hub", {}).get("url")
    if recipe.run.push_to_hub and not pushed and load_engine(recipe.engine).start():
        _push(run, recipe, summary, say)
    say(f"{run.path} is finished; its result:")
    return summary


def _push(run: RunDir, recipe: Recipe, summary: dict[str, Any], say: Say) -> None:
    """Push the export and add its place to the summary, which is whole without it."""
    summary["hub"] = {"url": push(recipe, run.export, say)}
    write_json(run.summary, summary)


def _say_nothing(line: str) -> None:
    """For the processes beside the one that writes: all have the same to say."""


def is_finished(run: RunDir) -> bool:
    """Whether the run has come to its end."""
    return run.summary.exists() and read_json(run.summary).get("status") == "finished"


def _new_run(source: RunDir, fork: Path) -> RunDir:
    if not source.checkpoints.exists():
        raise UserError(f"--fork: {source.path} holds no checkpoint to take weights from")
    if fork.exists() and any(fork.iterdir()) and not (fork / "recipe.yaml").exists():
        raise UserError(f"--fork: {fork} is not empty", "Name a new folder.")
    return RunDir(fork)


def _refuse_changed_recipe(run: RunDir, recipe: Recipe) -> None:
    if not (run.recipe.exists() and run.holds_work):
        return
    changed = diff_recipes(load_recipe(run.recipe).recipe, recipe)
    if changed:
        raise UserError(
            f"{run.path} holds a run of another recipe:\n  " + "\n  ".join(changed),
            "Give `--set run.dir=NEW` for a new run, `--fork NEW` to take its weights along, "
            "or delete the folder.",
        )


def _open_run(
    run: RunDir, loaded: LoadedRecipe, prepared: Prepared, writes: bool
) -> dict[str, Any]:
    """The run's manifest: made for a new run, checked for one that goes on."""
    fingerprint = prepared.data.fingerprint
    if run.manifest.exists() and run.holds_work:
        manifest = read_json(run.manifest)
        if manifest["data_fingerprint"] != fingerprint:
            raise UserError(
                f"the data of {run.path} have changed since the run began "
                f"(fingerprint {manifest['data_fingerprint']}, now {fingerprint})",
                "Restore them, or start a new run with `--set run.dir=NEW` or `--fork NEW`.",
            )
        return manifest
    recipe = loaded.recipe
    manifest = make_manifest(
        data_fingerprint=fingerprint, seed=recipe.train.seed, model=str(prepared.model_dir)
    )
    manifest["base_dir"] = str(loaded.base_dir)
    manifest["model_origin"] = origin_note(prepared.model_dir)
    manifest["data"] = {"train": prepared.data.train_stats.to_json()}
    if prepared.data.eval_stats is not None:
        manifest["data"]["eval"] = prepared.data.eval_stats.to_json()
    if writes:
        write_json(run.manifest, manifest)
        write_text(run.recipe, dump_recipe(recipe))
    return manifest


def _before(
    session: Session, run: RunDir, recipe: Recipe, prepared: Prepared, writes: bool, say: Say
) -> Evaluation:
    """The base model's figures and samples: measured once, kept for when the run goes on."""
    path = run.evaluation("before")
    if path.exists() and run.samples.exists():
        record = read_json(path)
        return Evaluation(**{k: record[k] for k in Evaluation.__slots__})
    say("measuring the model before training")
    figures, record = evaluate(session, recipe, prepared.data, prepared.tokenizer, say)
    answers = answer_prompts(session, recipe, prepared.data, prepared.tokenizer)
    for line in figures.lines():
        say(f"  before: {line}")
    samples = [Sample(p, a) for p, a in zip(recipe.eval.prompts, answers, strict=True)]
    for sample in samples:
        say(f"  before: {sample.prompt!r} -> {sample.before!r}")
    if writes:
        write_json(run.samples, [sample.to_json() for sample in samples])
        write_json(path, record)
    return figures


def _after(
    session: Session, run: RunDir, recipe: Recipe, prepared: Prepared, writes: bool, say: Say
) -> Evaluation:
    say("measuring the model after training")
    figures, record = evaluate(session, recipe, prepared.data, prepared.tokenizer, say)
    answers = answer_prompts(session, recipe, prepared.data, prepared.tokenizer)
    for line in figures.lines():
        say(f"  after: {line}")
    for prompt, answer in zip(recipe.eval.prompts, answers, strict=True):
        say(f"  after: {prompt!r} -> {answer!r}")
    if writes:
        kept = [Sample(**sample) for sample in read_json(run.samples)]
        samples = [
            Sample(sample.prompt, sample.before, answer)
            for sample, answer in zip(kept, answers, strict=True)
        ]
        write_json(run.samples, [sample.to_json() for sample in samples])
        write_json(run.evaluation("after"), record)
    return figures


def _export(
    session: Session, run: RunDir, recipe: Recipe, prepared: Prepared, writes: bool, say: Say
) -> Export | None:
    if recipe.run.export == "none":
        return None
    exported = export(
        session,
        recipe,
        prepared.model_dir,
        prepared.data,
        prepared.tokenizer,
        run.export,
        say,
        writes=writes,
    )
    for line in exported.lines() if exported else ():
        say(line)
    return exported


def _summary(
    manifest: dict[str, Any],
    recipe: Recipe,
    status: str,
    before: Evaluation,
    after: Evaluation | None = None,
    result: TrainResult | None = None,
    exported: Export | None = None,
    *,
    engine: Engine,
) -> dict[str, Any]:
    return {
        "version": VERSION,
        "run_id": manifest["run_id"],
        "engine": recipe.engine,
        "status": status,
        "before": before.figures(),
        "after": (after or Evaluation()).figures(),
        "tokens_per_second": result and result.tokens_per_second,
        "target_tokens": result and result.target_tokens,
        "steps": result and result.steps,
        "best_step": result and result.best_step,
        "peak_bytes": engine.peak_bytes(),
        "seconds": None,
        "train_seconds": result and result.seconds,
        "export": {
            "path": exported and exported.path,
            "max_logit_gap": exported and exported.max_logit_gap,
        },
        "hub": {"url": None},
    }
