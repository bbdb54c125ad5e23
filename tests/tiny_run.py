"""Small recipes with data of their own, and the verbs called as a user would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.cli import main

ROOT = Path(__file__).parents[1]
_WORDS = (
    "once upon a time there was little girl who liked to play in the park and sat on mat".split()
)


def sentences(count: int, *, seed: int = 0, shortest: int = 4, longest: int = 10) -> list[str]:
    """Texts of so many words each."""
    rng = np.random.default_rng(seed)
    return [
        " ".join(rng.choice(_WORDS, rng.integers(shortest, longest + 1))) + "."
        for _ in range(count)
    ]


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    """Rows as a .jsonl file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_recipe(folder: Path, model_dir: Path, **sections: Any) -> Path:
    """recipe.yaml in a folder that holds train.jsonl, 16 short texts unless it is there.

    Four sequences of 32 tokens per step, in float32; run folder `run`. Sections given are laid over
    these defaults, one level deep.
    """
    folder.mkdir(exist_ok=True)
    if not (folder / "train.jsonl").exists():
        write_lines(folder / "train.jsonl", [{"text": text} for text in sentences(16)])
    values: dict[str, Any] = {
        "name": "tiny",
        "model": {"source": "dir", "id": str(model_dir)},
        "data": {
            "train": {"files": ["train.jsonl"], "format": "text"},
            "max_length": 32,
            "packing": False,
        },
        "train": {"learning_rate": 0.01, "batch_size": 4, "compute_dtype": "float32"},
        "eval": {},
        "run": {"dir": str(folder / "run")},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section if isinstance(section, dict) else section
    if "lora" in values:
        values["train"]["method"] = "lora"
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")
    return path


def tunesmith(*arguments: str | Path) -> int:
    """Run a command here; its exit status."""
    return main([str(argument) for argument in arguments])


def start_tunesmith(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tunesmith", *map(str, arguments)],
        env=os.environ | environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_summary(run: Path) -> dict[str, Any]:
    """A run's summary.json."""
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a .jsonl file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
