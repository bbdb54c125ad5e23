"""An engine's estimate, in a process of its own: `python -m tunesmith.engines.estimate FOLDER`.

Counting pretends devices and processes that are not there, which nothing else in a process should
meet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tunesmith.engines.contract import Estimate, Say, load_engine
from tunesmith.errors import UserError
from tunesmith.recipe.load import dump_recipe, load_recipe
from tunesmith.recipe.schema import Recipe

_ERROR_LINES = 15


def estimate(recipe: Recipe, config: Mapping[str, Any], *, device_count: int, say: Say) -> Estimate:
    """Memory of a training step on each device.

    Args:
        recipe: what would be trained, with its engine.
        config: the model's config.json.
        device_count: devices in all.
        say: told how far it is.

    Raises:
        UserError: the recipe does not fit the model or the devices, or the engine has no estimate.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked = Path(folder)
        (asked / "recipe.yaml").write_text(dump_recipe(recipe), encoding="utf-8")
        (asked / "config.json").write_text(json.dumps(config), encoding="utf-8")
        (asked / "count").write_text(str(device_count), encoding="utf-8")
        command = [sys.executable, "-m", "tunesmith.engines.estimate", folder]
        # A GPU that is here would be taken for one of those pretended.
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        with (
            (asked / "stderr").open("w", encoding="utf-8") as stderr,
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                say(line.rstrip("\n"))
        answer = asked / "answer.json"
        if process.returncode or not answer.exists():
            lines = (asked / "stderr").read_text(encoding="utf-8").splitlines()[-_ERROR_LINES:]
            raise RuntimeError("the estimate came to no end:\n" + "\n".join(lines))
        found = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in found:
        raise UserError(found["error"], found["hint"])
    return Estimate(**found)


def main(folder: Path) -> None:
    """Answer what lies in a folder, into that folder; lines about progress go to the output."""
    recipe = load_recipe(folder / "recipe.yaml").recipe
    count = int((folder / "count").read_text(encoding="utf-8"))
    try:
        found = asdict(
            load_engine(recipe.engine).estimate(
                recipe, folder, device_count=count, say=lambda line: print(line, flush=True)
            )
        )
    except UserError as error:
        found = {"error": error.message, "hint": error.hint}
    (folder / "answer.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
