"""Checkpoints through torch's distributed checkpointing, as safetensors and JSON. No pickle.

    checkpoints/state/STEP   newest ones, to go on from: weights that train, their moments
    checkpoints/best/STEP    the trained weights with the least evaluation loss

Each process writes the part that it holds, and reads the part that it needs: a run may go on with
another number of processes. A checkpoint appears under its name when all of it is written.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import PartialState
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tunesmith.engines.contract import Say
from tunesmith.engines.loop import Progress
from tunesmith.errors import UserError
from tunesmith.runs.rundir import write_json

Params = dict[str, torch.Tensor]

_PROGRESS = "progress.json"
# Damaged files raise many kinds; torch's own is none of Python's ordinary ones.
_DAMAGE = (Exception, CheckpointException)
_WEIGHT, _MOMENTS = "weight/", ("exp_avg", "exp_avg_sq")


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: of the run's checkpoints.
        keep: how many of the newest stay.
    """

    def __init__(self, directory: Path, *, keep: int) -> None:
        self._directory = directory
        self._state, self._best, self._keep = directory / "state", directory / "best", keep

    def save(self, trainable: Params, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """Save all that training needs to go on; every process calls it."""
        tensors = _named(trainable) | _moments(trainable, optimizer)
        steps = {int(optimizer.state[p]["step"]) for p in trainable.values() if optimizer.state[p]}
        notes = asdict(progress) | {"updates": max(steps, default=0)}
        _write(self._state, progress.step, tensors, notes, keep=self._keep)

    def save_best(self, trainable: Params, step: int) -> None:
        """Keep the weights that evaluated best so far."""
        _write(self._best, step, _named(trainable), {"step": step}, keep=1)

    def restore(self, trainable: Params, optimizer: torch.optim.Optimizer, say: Say) -> Progress:
        """Read the newest readable checkpoint into weights and optimizer, in place.

        A damaged one is named and passed over.

        Raises:
            UserError: there are checkpoints, but none can be read.
        """
        found = _steps(self._state)
        for step in found:
            try:
                notes = _read_notes(self._state / str(step))
                updates = notes.pop("updates")
                progress = Progress(**notes)
                _start_moments(trainable, optimizer, updates)
                _read(self._state / str(step), _named(trainable) | _moments(trainable, optimizer))
                return progress
            except _DAMAGE as error:
                say(f"{_unreadable(step, error)}; trying the one before")
        if found:
            raise UserError(
                f"none of the checkpoints in {self._directory} can be read",
                "Delete that folder to train from the start, or restore it from a copy.",
            )
        return Progress()

    def restore_weights(self, trainable: Params, say: Say, *, use_best: bool) -> int:
        """Read the weights alone of the newest checkpoint, or of the best one; returns its step.

        Raises:
            UserError: none can be read, or it holds other weights than these.
        """
        for directory in (self._best, self._state) if use_best else (self._state,):
            for step in _steps(directory):
                path = directory / str(step)
                try:
                    _check_same(path, trainable)
                    _read(path, _named(trainable))
                    return step
                except UserError:
                    raise
                except _DAMAGE as error:
                    say(_unreadable(step, error))
        raise UserError(f"{self._directory} holds no readable checkpoint")

    def restore_best(self, trainable: Params, step: int) -> None:
        """Read the weights saved as best at `step`, in place."""
        _read(self._best / str(step), _named(trainable))


def _named(trainable: Params) -> Params:
    return {_WEIGHT + name: parameter.detach() for name, parameter in trainable.items()}


def _moments(trainable: Params, optimizer: torch.optim.Optimizer) -> Params:
    """AdamW's two moments, which lie where their weights do."""
    return {
        f"{moment}/{name}": optimizer.state[parameter][moment]
        for name, parameter in trainable.items()
        for moment in _MOMENTS
        if moment in optimizer.state[parameter]
    }


def _start_moments(trainable: Params, optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Give the optimizer the state that it makes itself in its first step, to be read into."""
    if not updates:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            count = torch.tensor(float(updates))
            optimizer.state[parameter] = {
                "step": count.to(parameter.device) if group.get("fused") else count,
                **{moment: torch.zeros_like(parameter) for moment in _MOMENTS},
            }


def _write(directory: Path, step: int, tensors: Params, notes: dict, *, keep: int) -> None:
    state = PartialState()
    final, temporary = directory / str(step), directory / f".{step}"
    if state.is_main_process:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    state.wait_for_everyone()
    writer = HuggingFaceStorageWriter(str(temporary), save_distributed=True)
    with _alone_or_together() as no_dist:
        save(tensors, storage_writer=writer, no_dist=no_dist)
    state.wait_for_everyone()
    if state.is_main_process:
        write_json(temporary / _PROGRESS, notes)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        for old in _steps(directory)[keep:]:
            shutil.rmtree(directory / str(old))
    state.wait_for_everyone()


def _read(path: Path, tensors: Params) -> None:
    """Read into the tensors, in place; every process calls it."""
    with _alone_or_together() as no_dist:
        load(tensors, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=no_dist)


@contextmanager
def _alone_or_together() -> Iterator[bool]:
    """Whether one process does it all, about which torch need not warn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield PartialState().num_processes == 1


def _read_notes(path: Path) -> dict:
    return json.loads((path / _PROGRESS).read_text(encoding="utf-8"))


def _check_same(path: Path, trainable: Params) -> None:
    saved = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    shapes = {
        name.removeprefix(_WEIGHT): tuple(tensor.size)
        for name, tensor in saved.items()
        if name.startswith(_WEIGHT) and isinstance(tensor, TensorStorageMetadata)
    }
    if shapes != {name: tuple(parameter.shape) for name, parameter in trainable.items()}:
        raise UserError(
            f"{path} holds other weights than this recipe trains",
            "Keep the model, train.method, lora.r and lora.targets as they were.",
        )


def _steps(directory: Path) -> list[int]:
    """Steps of the checkpoints that were written to their end, newest first."""
    names: Iterator[str] = (path.name for path in directory.glob("[0-9]*"))
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def _unreadable(step: int, error: BaseException) -> str:
    return f"the checkpoint of step {step} cannot be read ({type(error).__name__})"
