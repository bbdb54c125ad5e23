"""Measure a session: loss, generated SQL, and answers to the recipe's prompts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.data.dataset import PreparedData
from tunesmith.data.prompts import opening, prompt_ids
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import EvalRow
from tunesmith.engines.contract import Measure, Say, Session, load_engine
from tunesmith.errors import UserError
from tunesmith.models.resolve import check_model_dir
from tunesmith.prepare import find_export, is_run, load_run, prepare_run
from tunesmith.recipe.catalog import shipped_names
from tunesmith.recipe.load import load_recipe
from tunesmith.recipe.schema import Recipe, TextToSql
from tunesmith.tasks.perplexity import from_loss
from tunesmith.tasks.sql_text import extract_statement
from tunesmith.tasks.text_to_sql import SqlItem, SqlReport, score

_SAY_EVERY = 10.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one model on the recipe's evaluation rows; None where one does not apply.

    Attributes:
        loss: nats per target token.
        perplexity: its exponential.
        execution_accuracy: share of measurable questions whose SQL gives the right rows.
        exact_match: share of questions whose SQL is the gold query after normalisation.
        questions: SQL questions asked, and of them those that can be measured by running.
        target_tokens: what the loss was averaged over.
        seconds: that measuring took.
    """

    loss: float | None = None
    perplexity: float | None = None
    execution_accuracy: float | None = None
    exact_match: float | None = None
    questions: int | None = None
    measurable: int | None = None
    target_tokens: int | None = None
    seconds: float = 0.0

    def figures(self) -> dict[str, float | None]:
        """The figures of `summary.json`."""
        return {name: getattr(self, name) for name in ("loss", "exact_match", "execution_accuracy")}

    def lines(self) -> list[str]:
        """The figures for people."""
        lines = []
        if self.loss is not None:
            lines.append(f"loss {self.loss:.4f} over {self.target_tokens:,} target tokens")
        if self.questions is not None:
            accuracy = (
                "not measurable"
                if self.execution_accuracy is None
                else f"{self.execution_accuracy:.1%} of {self.measurable}"
            )
            lines.append(
                f"execution accuracy {accuracy}, "
                f"exact match {self.exact_match or 0.0:.1%} of {self.questions}"
            )
        return lines


def evaluate(
    session: Session, recipe: Recipe, data: PreparedData, tokenizer: Tokenizer, say: Say
) -> tuple[Evaluation, dict[str, Any]]:
    """Measure what the recipe's `eval` asks for.

    Returns:
        The figures, and what `evaluation/*.json` keeps: figures and every answer.
    """
    begun = time.perf_counter()
    figures: dict[str, Any] = {}
    record: dict[str, Any] = {}
    if data.eval is not None:
        rows = data.eval.first_rows(recipe.eval.max_rows or data.eval.num_examples)
        told = _Ticker(say, "evaluation loss: {} of {} sequences")
        measured = session.loss(rows, batch_size=recipe.eval.batch_size, progress=told)
        figures |= asdict(from_loss(measured.total, measured.target_tokens))
    if recipe.eval.text_to_sql is not None:
        rows = recipe.eval.text_to_sql.rows
        report, record["text_to_sql"] = _text_to_sql(session, recipe, data, tokenizer, say, rows)
        figures |= {
            "execution_accuracy": report.execution_accuracy,
            "exact_match": report.exact_match,
            "questions": report.total,
            "measurable": report.measurable,
        }
    evaluation = Evaluation(**figures, seconds=time.perf_counter() - begun)
    return evaluation, asdict(evaluation) | record


def evaluate_model(
    recipe_or_run: str, overrides: Sequence[str], *, model_dir: Path | None, say: Say
) -> tuple[Evaluation, dict[str, Any]]:
    """Measure a run's exported model, or a recipe's base model, or the model given.

    Args:
        recipe_or_run: run folder, shipped recipe or YAML file.
        overrides: `a.b=VALUE`, for recipes.
        model_dir: a Hugging Face directory to measure instead.
        say: told what goes on.

    Raises:
        UserError: bad input, overrides with a run folder, a run without an export, or a recipe
            without evaluation rows.
    """
    path, adapter_dir = Path(recipe_or_run), None
    if is_run(path):
        if overrides:
            raise UserError("--set changes recipes, not runs", f"Name {path}/recipe.yaml instead.")
        loaded = load_run(path)
        if model_dir is None:
            found = find_export(path, loaded, say)
            model_dir, adapter_dir = found.model_dir, found.adapter_dir
    elif path.is_dir() and recipe_or_run not in shipped_names():
        loaded = load_run(path)  # says what the folder lacks
    else:
        loaded = load_recipe(recipe_or_run, overrides)
    recipe = loaded.recipe
    if recipe.data.eval is None and recipe.data.holdout is None:
        raise UserError(
            "there is nothing to measure on: the recipe has neither data.eval nor data.holdout",
            "Give one of them, e.g. with --set data.holdout.rows=100.",
        )
    engine = load_engine(recipe.engine)
    engine.start()
    prepared = prepare_run(loaded, say, model_dir=model_dir and check_model_dir(model_dir))
    check_sql_fields(recipe, prepared.data)
    session = engine.open_session(
        prepared.model_dir, adapter_dir=adapter_dir, compute_dtype=recipe.train.compute_dtype
    )
    return evaluate(session, recipe, prepared.data, prepared.tokenizer, say)


def answer_prompts(
    session: Session, recipe: Recipe, data: PreparedData, tokenizer: Tokenizer
) -> list[str]:
    """Continue each of `eval.prompts` as the recipe's `generation` says.

    In a conversation they follow the system message that the training rows have.
    """
    history = opening(recipe.data.train)
    prompts = [prompt_ids(text, tokenizer, data.template, history) for text in recipe.eval.prompts]
    if not prompts:
        return []
    answers = session.generate(
        prompts,
        recipe.eval.generation,
        stop_ids=tokenizer.stop_ids,
        batch_size=recipe.eval.generation_batch_size,
    )
    return [tokenizer.decode(answer.ids) for answer in answers]


def measure_while_training(
    session: Session, recipe: Recipe, data: PreparedData, tokenizer: Tokenizer, say: Say
) -> Measure | None:
    """What an engine calls at each evaluation of `eval.every_steps`; None if the loss is all."""
    count = recipe.eval.text_to_sql and recipe.eval.text_to_sql.rows_while_training
    if not count:
        return None

    def measure() -> dict[str, float]:
        report, _ = _text_to_sql(session, recipe, data, tokenizer, say, count)
        scores = {
            "execution_accuracy": report.execution_accuracy,
            "exact_match": report.exact_match,
        }
        return {name: score for name, score in scores.items() if score is not None}

    return measure


def _text_to_sql(
    session: Session,
    recipe: Recipe,
    data: PreparedData,
    tokenizer: Tokenizer,
    say: Say,
    count: int | None,
) -> tuple[SqlReport, dict[str, Any]]:
    """Answer and score the first `count` rows; None: all."""
    fields = recipe.eval.text_to_sql
    assert fields is not None
    rows = list(data.eval_rows(count))

    def ended(index: int, ids: np.ndarray) -> bool:
        """Whether the first statement is whole: more text would not change it."""
        text = tokenizer.decode(ids)
        statement = extract_statement(text)
        return bool(statement) and extract_statement(f"{text} more") == statement

    told = _Ticker(say, "questions: {} of {} answered")
    answers = session.generate(
        [row.prompt for row in rows],
        recipe.eval.generation,
        stop_ids=tokenizer.stop_ids,
        batch_size=recipe.eval.generation_batch_size,
        done=ended,
        progress=lambda count: told(count, len(rows)),
    )
    texts = [tokenizer.decode(answer.ids) for answer in answers]
    report = score(
        SqlItem(
            id=str(row.where),
            context=row.fields[fields.context],
            gold=row.fields[fields.sql],
            prediction=text,
            setup=row.fields[fields.setup] if fields.setup else None,
        )
        for row, text in zip(rows, texts, strict=True)
    )
    questions = [row.fields[fields.question] for row in rows]
    record = report.to_json() | {"questions": questions, "answers": texts}
    return report, record


def check_sql_fields(recipe: Recipe, data: PreparedData) -> None:
    """See, before anything is loaded, that the rows have the fields that `text_to_sql` names.

    Raises:
        UserError: names the first row that lacks one, and what it has.
    """
    fields = recipe.eval.text_to_sql
    if fields is not None:
        most = fields.rows and max(fields.rows, fields.rows_while_training or 0)
        _check_rows(data.eval_rows(most), fields)


def _check_rows(rows: Iterable[EvalRow], fields: TextToSql) -> None:
    wanted = [
        fields.question,
        fields.context,
        fields.sql,
        *([fields.setup] if fields.setup else []),
    ]
    for row in rows:
        for name in wanted:
            if not isinstance(row.fields.get(name), str):
                raise UserError(
                    f"{row.where}: no text in field {name!r}, which eval.text_to_sql reads; "
                    f"there are {', '.join(sorted(row.fields))}",
                    "Name the right fields under eval.text_to_sql.",
                )


class _Ticker:
    """Says how far something is, every ten seconds."""

    def __init__(self, say: Say, text: str) -> None:
        self._say, self._text, self._said = say, text, time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        if time.perf_counter() - self._said > _SAY_EVERY:
            self._said = time.perf_counter()
            self._say(self._text.format(done, total))
