"""`tunesmith plan`: whether a recipe's training fits the machines, before anything is paid for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tunesmith.engines.contract import Estimate, Say
from tunesmith.engines.estimate import estimate
from tunesmith.errors import UserError
from tunesmith.hardware import Target, parse_target
from tunesmith.models.published import find_config
from tunesmith.prepare import resolve_recipe_model
from tunesmith.recipe.load import LoadedRecipe
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.rundir import VERSION, write_json

_GIB = 2**30
# Above this share there is no room for what is not counted.
_TIGHT = 0.9


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a recipe on one target.

    Attributes:
        target: the devices.
        estimate: memory of a step on each.
    """

    target: Target
    estimate: Estimate

    @property
    def share(self) -> float:
        """Peak as a share of a device's memory."""
        return self.estimate.peak_bytes / self.target.chip.memory_bytes

    @property
    def verdict(self) -> str:
        """`fits`, `tight` (what is not counted may be too much) or `does not fit`."""
        if self.share > 1:
            return "does not fit"
        answering = self.estimate.by_kind.get("parameters", 0) + self.estimate.cache_bytes
        fullest = max(self.share, answering / self.target.chip.memory_bytes)
        return "tight" if fullest > _TIGHT else "fits"

    def lines(self) -> list[str]:
        """The plan for people."""
        count, machine = self.target.machines
        parts = sorted(self.estimate.by_kind.items(), key=lambda part: -part[1])
        memory = self.target.chip.memory_bytes
        return [
            f"{self.target.name} ({count} × {machine}): {self.verdict}, "
            f"{self.estimate.peak_bytes / _GIB:.2f} GiB of {memory / _GIB:.1f} on each device "
            f"({self.share:.0%})",
            f"  at its peak, in the {self.estimate.phase}: "
            + ", ".join(f"{kind} {size / _GIB:.2f}" for kind, size in parts),
            *(f"  not counted: {text}" for text in self.estimate.not_counted),
        ]

    def to_json(self) -> dict[str, Any]:
        """One entry of plan.json."""
        count, machine = self.target.machines
        return {
            "on": self.target.name,
            "machine": machine,
            "machines": count,
            "memory_bytes": self.target.chip.memory_bytes,
            "share": self.share,
            "verdict": self.verdict,
        } | asdict(self.estimate)


def plan_recipe(
    loaded: LoadedRecipe, on: Sequence[str], say: Say, *, json_path: Path | None = None
) -> list[Plan]:
    """Estimate a recipe's training on each target; the plans that could be made.

    Args:
        loaded: the recipe.
        on: targets, e.g. `b200x8`; none: as many B200 as `parallel` names.
        say: told the plans, and how far they are.
        json_path: where plan.json is written, if anywhere.

    Raises:
        UserError: bad input, or no target can run the recipe; the reason is told for each.
    """
    recipe = loaded.recipe
    devices = (recipe.parallel.data or 1) * recipe.parallel.fsdp
    targets = [parse_target(name) for name in on or [f"b200x{devices}"]]
    config = _config(loaded, say)
    # What a step holds depends on how many share the work, not on which chip they are.
    counts = dict.fromkeys(target.count for target in targets)
    counted = {count: _counted(recipe, config, count, say) for count in counts}
    plans = [
        Plan(target, found)
        for target in targets
        if isinstance(found := counted[target.count], Estimate)
    ]
    if json_path is not None:
        entries = [plan.to_json() for plan in plans]
        write_json(json_path, {"version": VERSION, "recipe": recipe.name, "targets": entries})
    for plan in plans:
        for line in plan.lines():
            say(line)
    refused = [
        (target, error)
        for target in targets
        if isinstance(error := counted[target.count], UserError)
    ]
    for target, error in refused if plans else refused[1:]:
        say(f"{target.name}: refused: {error}")
    if not plans:
        raise refused[0][1]
    return plans


def _counted(recipe: Recipe, config: dict[str, Any], count: int, say: Say) -> Estimate | UserError:
    """The estimate for so many devices, or why there is none."""
    try:
        return estimate(recipe, config, device_count=count, say=say)
    except UserError as error:
        return error


def _config(loaded: LoadedRecipe, say: Say) -> dict[str, Any]:
    """The model's config.json; of a Hub model as far as it is known without fetching it."""
    model = loaded.recipe.model
    if model.source == "hub":
        return find_config("hub", model.id, model.revision)
    return find_config("dir", str(resolve_recipe_model(loaded, say)), None)
