"""`tunesmith inspect`: exactly what will be trained, before anything trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunesmith.data.dataset import PackedDataset, PreparedData
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import Encoded
from tunesmith.prepare import prepare_run
from tunesmith.recipe.load import LoadedRecipe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def inspect(loaded: LoadedRecipe, *, rows: int = 3, console: Console) -> PreparedData:
    """Prepares the data as `train` does and shows rows token by token, counts and warnings.

    Of the model only the directory with its tokenizer is needed; no weights are loaded.

    Args:
        loaded: the recipe that would be trained.
        rows: how many training examples to show; of evaluation examples one.
        console: where to print; colours mark the targets on a terminal, « » elsewhere.

    Raises:
        UserError: model or data cannot be had, or a row is bad.
    """
    recipe = loaded.recipe
    with console.status("Reading the data …") as status:
        prepared = prepare_run(loaded, status.update)
    data, tokenizer = prepared.data, prepared.tokenizer
    _show_examples(data.train, "train", rows, tokenizer, console)
    if data.eval is not None:
        _show_examples(data.eval, "eval", min(rows, 1), tokenizer, console)
    for name, stats in (("train", data.train_stats), ("eval", data.eval_stats)):
        if stats is not None:
            _line(console, name, style="bold")
            for line in stats.lines():
                _line(console, f"  {line}")
    batch_size = recipe.train.batch_size
    _line(
        console,
        f"steps per epoch: {data.train.steps_per_epoch(batch_size):,}, batches of {batch_size:,} "
        f"sequences of {recipe.data.max_length:,} tokens",
    )
    for warning in data.warnings:
        _line(console, f"warning: {warning}", style="yellow")
    return data


def _show_examples(
    data: PackedDataset, name: str, count: int, tokenizer: Tokenizer, console: Console
) -> None:
    for index in range(min(count, data.num_examples)):
        example = data.example(index)
        _line(
            console,
            f"{name}, example {index + 1} of {data.num_examples:,}: {len(example.ids):,} tokens, "
            f"{int(example.target.sum()):,} of them targets "
            + ("(green)" if console.is_terminal else "(in « »)"),
            style="bold",
        )
        console.print(marked_tokens(example, tokenizer, plain=not console.is_terminal))
        console.print()


def marked_tokens(example: Encoded, tokenizer: Tokenizer, *, plain: bool) -> Text:
    """An example's tokens as the vocabulary spells them, a space between, targets marked.

    Args:
        example: tokens and targets.
        tokenizer: the model's.
        plain: mark targets as «token» rather than by colour.
    """
    from rich.text import Text

    text = Text()
    for id, is_target in zip(example.ids, example.target, strict=True):
        token = tokenizer.token(id).replace("\n", "⏎").replace("\t", "⇥")
        if plain:
            text.append(f"«{token}»" if is_target else token)
        else:
            text.append(token, style="bold green" if is_target else "dim")
        text.append(" ")
    text.rstrip()
    return text


def _line(console: Console, line: str, *, style: str | None = None) -> None:
    """Prints a line as it is: file names and tokens may look like rich's markup."""
    console.print(line, style=style, markup=False, highlight=False)
