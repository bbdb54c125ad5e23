"""The run folder: what lies where, and what a second start on it means.

    recipe.yaml      the resolved recipe
    manifest.json    run id, versions, git commit, data fingerprint, seed, command
    metrics.jsonl    one line per logged step and evaluation
    tensorboard/     the same as event files, with run.tensorboard
    checkpoints/     what training goes on from (engine's own format)
    evaluation/      before.json and after.json with every answer given
    samples.json     the recipe's prompts continued before and after
    export/          the Hugging Face directory
    summary.json     the figures; its presence says that the run is finished

Files are written whole or not at all: to a temporary name in the same folder, then renamed.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tunesmith import __version__
from tunesmith.errors import UserError

VERSION = 1
_PACKAGES = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "tokenizers", "safetensors")


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of one run."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def manifest(self) -> Path:
        """What the run was made with."""
        return self.path / "manifest.json"

    @property
    def metrics(self) -> Path:
        """Step by step figures."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """The engine's checkpoints."""
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        """Prompts continued before and after."""
        return self.path / "samples.json"

    @property
    def export(self) -> Path:
        """The exported model."""
        return self.path / "export"

    @property
    def summary(self) -> Path:
        """The run's figures, once it is finished."""
        return self.path / "summary.json"

    def evaluation(self, when: str) -> Path:
        """Figures and answers of the evaluation `before` or `after` training."""
        return self.path / "evaluation" / f"{when}.json"

    @property
    def holds_work(self) -> bool:
        """Whether a start has got as far as measuring or training; before, nothing can be lost."""
        work = (self.evaluation("before"), self.samples, self.metrics, self.checkpoints)
        return any(path.exists() for path in work)

    @property
    def finished(self) -> bool:
        """Whether the run has its summary."""
        return self.summary.exists()


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        UserError: the folder cannot be written to, or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all; NaN and infinity are refused, for JSON has none."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of a run.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(
            f"{path} is damaged: {error}", "Delete it to have it made again."
        ) from error


def make_manifest(*, data_fingerprint: str, seed: int, model: str) -> dict[str, Any]:
    """What a run is made with, for `manifest.json`."""
    versions = {"tunesmith": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "version": VERSION,
        "run_id": f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}",
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "model": model,
        "data_fingerprint": data_fingerprint,
        "seed": seed,
        "versions": versions,
        "platform": platform.platform(),
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """Commit of the folder in which tunesmith was started, if it is a git work tree."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
