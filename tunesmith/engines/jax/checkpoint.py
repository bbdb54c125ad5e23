"""Checkpoints through Orbax: what trains, its moments, and what it belongs to. No pickle.

    checkpoints/state/STEP   newest ones, to go on from
    checkpoints/best/STEP    the trained weights with the least evaluation loss

A checkpoint holds only what trains: with LoRA the adapters, never the frozen base.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from tunesmith.engines.contract import Say
from tunesmith.engines.jax.params import Params
from tunesmith.engines.jax.step import TrainState
from tunesmith.engines.loop import Progress
from tunesmith.errors import UserError


def _as(tree: Any) -> ocp.args.StandardRestore:
    """Restore into the shapes, types and placement of these arrays, whoever saved them."""
    return ocp.args.StandardRestore(
        jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), tree)
    )


def _restore_weights(manager: ocp.CheckpointManager, trainable: Params, step: int) -> Params:
    saved = manager.item_metadata(step)["trainable"]
    if {name: a.shape for name, a in saved.items()} != {n: a.shape for n, a in trainable.items()}:
        raise UserError(
            f"{manager.directory}/{step} holds other weights than this recipe trains",
            "Keep the model, train.method, lora.r and lora.targets as they were.",
        )
    return manager.restore(step, args=ocp.args.Composite(trainable=_as(trainable)))["trainable"]


def _unreadable(step: int, error: Exception) -> str:
    return f"the checkpoint of step {step} cannot be read ({type(error).__name__})"


class Checkpoints:
    """The checkpoints of one run. Saving goes on in the background; `close` waits for it."""

    def __init__(self, directory: Path, *, keep: int) -> None:
        self._directory = path = directory.absolute()
        self._state = ocp.CheckpointManager(
            path / "state",
            options=ocp.CheckpointManagerOptions(max_to_keep=keep),
            item_handlers={
                "trainable": ocp.StandardCheckpointHandler(),
                "optimizer": ocp.StandardCheckpointHandler(),
                "progress": ocp.JsonCheckpointHandler(),
            },
        )
        self._best = ocp.CheckpointManager(
            path / "best",
            options=ocp.CheckpointManagerOptions(max_to_keep=1),
            item_handlers={"trainable": ocp.StandardCheckpointHandler()},
        )

    def save(self, state: TrainState, progress: Progress) -> None:
        """Save all that training needs to go on."""
        self._best.wait_until_finished()  # see `save_best`
        self._state.save(
            progress.step,
            args=ocp.args.Composite(
                trainable=ocp.args.StandardSave(state.trainable),
                optimizer=ocp.args.StandardSave(state.optimizer),
                progress=ocp.args.JsonSave(asdict(progress)),
            ),
        )

    def save_best(self, trainable: Params, step: int) -> None:
        """Keep the weights that evaluated best so far."""
        # One save at a time: Orbax names the points where processes meet by the newest save's
        # number, so two in the background (0.12) may leave hosts waiting at different ones.
        self._state.wait_until_finished()
        self._best.save(step, args=ocp.args.Composite(trainable=ocp.args.StandardSave(trainable)))

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
                        trainable=_as(state.trainable),
                        optimizer=_as(state.optimizer),
                        progress=ocp.args.JsonRestore(),
                    ),
                )
            except Exception as error:  # Orbax raises many kinds for damaged files
                say(f"{_unreadable(step, error)}; trying the one before")
                damaged.append(step)
                continue
            for later in damaged:  # Orbax saves no step that is not above all that are there
                self._state.delete(later)
            progress = Progress(**saved["progress"])
            return TrainState(saved["trainable"], saved["optimizer"]), progress
        if damaged:
            raise UserError(
                f"none of the checkpoints in {self._directory} can be read",
                "Delete that folder to train from the start, or restore it from a copy.",
            )
        return state, Progress()

    def restore_weights(self, trainable: Params, say: Say, *, use_best: bool) -> tuple[Params, int]:
        """The weights alone of the newest checkpoint, or of the best one; and its step.

        Args:
            trainable: gives shapes, types and placement.
            say: told about checkpoints that cannot be read.
            use_best: take the best one if there is one.

        Raises:
            UserError: none can be read, or it holds other weights than these.
        """
        for manager in (self._best, self._state) if use_best else (self._state,):
            for step in sorted(manager.all_steps(), reverse=True):
                try:
                    return _restore_weights(manager, trainable, step), step
                except UserError:
                    raise
                except Exception as error:  # Orbax raises many kinds for damaged files
                    say(_unreadable(step, error))
        raise UserError(f"{self._directory} holds no readable checkpoint")

    def restore_best(self, trainable: Params, step: int) -> Params:
        """The weights saved as best at `step`."""
        self._best.wait_until_finished()
        return _restore_weights(self._best, trainable, step)

    def close(self) -> None:
        """Wait until all is on disk."""
        self._state.close()
        self._best.close()
