"""Checkpoints through Orbax: what trains, its moments, and what it belongs to. No pickle.

    checkpoints/state/STEP   newest ones, to go on from
    checkpoints/best/STEP    the trained weights with the least evaluation loss

A checkpoint holds only what trains: with LoRA the adapters, never the frozen base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from tunesmith.engines.contract import Say
from tunesmith.engines.jax.params import Params
from tunesmith.engines.jax.step import TrainState
from tunesmith.errors import UserError


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands, saved beside its weights.

    Attributes:
        step: optimizer steps done.
        best_step, best_loss: the evaluation with the least loss so far.
        skipped: steps dropped because they were not finite.
        tokens, target_tokens, seconds: what training has taken so far.
    """

    step: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    skipped: int = 0
    tokens: int = 0
    target_tokens: int = 0
    seconds: float = 0.0


def _like(tree: Any) -> Any:
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tree)


def _unreadable(step: int, error: Exception) -> str:
    return f"the checkpoint of step {step} cannot be read ({type(error).__name__})"


class Checkpoints:
    """The checkpoints of one run. Saving goes on in the background; `close` waits for it."""

    def __init__(self, directory: Path, *, keep: int) -> None:
        self._directory = path = directory.absolute()
        self._state = ocp.CheckpointManager(
            path / "state", options=ocp.CheckpointManagerOptions(max_to_keep=keep)
        )
        self._best = ocp.CheckpointManager(
            path / "best", options=ocp.CheckpointManagerOptions(max_to_keep=1)
        )

    def save(self, state: TrainState, progress: Progress) -> None:
        """Save all that training needs to go on."""
        self._state.save(
            progress.step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state._asdict()),
                progress=ocp.args.JsonSave(asdict(progress)),
            ),
        )

    def save_best(self, trainable: Params, step: int) -> None:
        """Keep the weights that evaluated best so far."""
        self._best.save(
            step, args=ocp.args.Composite(trainable=ocp.args.StandardSave(dict(trainable)))
        )

    def restore(self, state: TrainState, say: Say) -> tuple[TrainState, Progress]:
        """The newest readable checkpoint, or what was given where there is none at all.

        A damaged one is named and removed, and the one before is taken.

        Args:
            state: gives shapes, types and placement.
            say: told about damaged checkpoints.

        Raises:
            UserError: there are checkpoints, but none can be read.
        """
        damaged = []
        for step in sorted(self._state.all_steps(), reverse=True):
            try:
                saved = self._state.restore(
                    step,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardRestore(_like(state._asdict())),
                        progress=ocp.args.JsonRestore(),
                    ),
                )
            except Exception as error:  # Orbax raises many kinds for damaged files
                say(f"{_unreadable(step, error)}; trying the one before")
                damaged.append(step)
                continue
            for later in damaged:  # Orbax saves no step that is not above all that are there
                self._state.delete(later)
            return TrainState(**saved["state"]), Progress(**saved["progress"])
        if damaged:
            raise UserError(
                f"none of the checkpoints in {self._directory} can be read",
                "Delete that folder to train from the start, or restore it from a copy.",
            )
        return state, Progress()

    def restore_weights(self, trainable: Params, say: Say) -> tuple[Params, int]:
        """The weights alone of the best checkpoint, else the newest; and its step.

        Raises:
            UserError: none can be read as these weights.
        """
        newest_first = [
            (manager, item, step)
            for manager, item in ((self._best, "trainable"), (self._state, "state"))
            for step in sorted(manager.all_steps(), reverse=True)
        ]
        for manager, item, step in newest_first:
            try:
                saved = manager.restore(step)[item]
            except Exception as error:  # Orbax raises many kinds for damaged files
                say(_unreadable(step, error))
                continue
            weights = saved if item == "trainable" else saved["trainable"]
            found = {name: array.shape for name, array in weights.items()}
            if found != {name: array.shape for name, array in trainable.items()}:
                raise UserError(
                    f"{self._directory} holds other weights than this recipe trains",
                    "Keep `train.method`, `lora.r`, `lora.targets` and the model as they were.",
                )
            placed = {n: jax.device_put(weights[n], a.sharding) for n, a in trainable.items()}
            return placed, step
        raise UserError(f"{self._directory} holds no readable checkpoint")

    def restore_best(self, trainable: Params, step: int) -> Params:
        """The weights saved as best at `step`."""
        self._best.wait_until_finished()
        saved: Mapping[str, Any] = self._best.restore(
            step,
            args=ocp.args.Composite(trainable=ocp.args.StandardRestore(_like(dict(trainable)))),
        )
        return saved["trainable"]

    def close(self) -> None:
        """Wait until all is on disk."""
        self._state.close()
        self._best.close()
