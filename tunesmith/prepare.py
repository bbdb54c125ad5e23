"""What every verb does first: find the recipe's run folder, model and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunesmith.data.dataset import PreparedData, prepare
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.engines.contract import Say
from tunesmith.errors import UserError
from tunesmith.models.gguf import origin_note
from tunesmith.models.resolve import resolve_model
from tunesmith.recipe.load import LoadedRecipe, load_recipe
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.rundir import RunDir, read_json


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a run stands on before weights are loaded."""

    model_dir: Path
    tokenizer: Tokenizer
    data: PreparedData


def prepare_run(loaded: LoadedRecipe, say: Say, *, model_dir: Path | None = None) -> Prepared:
    """Find the model, read its tokenizer and prepare the data.

    Args:
        loaded: the recipe.
        say: told what goes on.
        model_dir: the model, where it is not the recipe's.

    Raises:
        UserError: one of them cannot be had.
    """
    model_dir = model_dir or resolve_recipe_model(loaded, say)
    if note := origin_note(model_dir):
        say(note)
    tokenizer = Tokenizer.load(model_dir)
    data = prepare(loaded.recipe, tokenizer, base_dir=loaded.base_dir, progress=say)
    return Prepared(model_dir, tokenizer, data)


def resolve_recipe_model(loaded: LoadedRecipe, say: Say) -> Path:
    """The base model's directory; a relative path starts at the recipe's folder, as data's do.

    Raises:
        UserError: the model cannot be had.
    """
    model = loaded.recipe.model
    local = model.source != "hub" and not model.id.startswith("pypi:")
    name = str(loaded.base_dir / Path(model.id).expanduser()) if local else model.id
    return resolve_model(model.source, name, model.revision, progress=conversion_ticker(say))


def conversion_ticker(say: Say) -> Callable[[str, int, int], None]:
    """Tells of a conversion at its start and end, which `models.resolve` reports by tensors."""

    def tick(what: str, done: int, total: int) -> None:
        if done in (0, 1, total):
            say(f"{what}: {done} of {total} tensors")

    return tick


def run_dir(recipe: Recipe) -> RunDir:
    """The run folder of a recipe."""
    return RunDir(Path(recipe.run.dir.replace("{recipe}", recipe.name)))


def is_run(path: Path) -> bool:
    """Whether a folder is a run's."""
    run = RunDir(path)
    return run.recipe.exists() and run.manifest.exists()


def load_run(path: Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """The recipe of a run folder, its relative paths starting where they did for the run.

    Raises:
        UserError: the folder is not a run's, or the overrides do not fit its recipe.
    """
    if not is_run(path):
        raise UserError(
            f"{path} is not a run folder: it lacks recipe.yaml or manifest.json",
            "`tunesmith train RECIPE` makes one.",
        )
    run = RunDir(path)
    loaded = load_recipe(run.recipe, overrides)
    base_dir = Path(read_json(run.manifest)["base_dir"])
    return LoadedRecipe(loaded.recipe, base_dir, loaded.path, loaded.text)


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """What a run exported.

    Attributes:
        model_dir: weights to load: the export, or the base model of an adapter.
        adapter_dir: the export, if it is an adapter.
    """

    model_dir: Path
    adapter_dir: Path | None


def find_export(path: Path, loaded: LoadedRecipe, say: Say) -> ExportedModel:
    """The exported model of a run folder.

    Raises:
        UserError: the run has exported nothing.
    """
    exported = RunDir(path).export
    if not exported.exists():
        raise UserError(
            f"{path} has exported nothing yet",
            "`tunesmith train` finishes the run; run.export must not be `none`.",
        )
    if (exported / "adapter_config.json").exists():
        return ExportedModel(resolve_recipe_model(loaded, say), exported)
    return ExportedModel(exported, None)
