"""Export a session as a Hugging Face directory, and prove it equal to what was trained."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.data.dataset import PreparedData
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.engines.contract import Say, Session, load_engine
from tunesmith.errors import UserError
from tunesmith.models import reference
from tunesmith.models.tensor_files import TensorFiles
from tunesmith.prepare import load_run, prepare_run
from tunesmith.recipe.schema import Recipe
from tunesmith.runs.rundir import RunDir, write_json

# Files of a model directory that an export carries along as they are.
_CARRIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "preprocessor_config.json",
    "processor_config.json",
)
_TEMPLATE = "chat_template.jinja"

# Rows, tokens of each, and new tokens that the proof runs.
_PROOF_ROWS, _PROOF_LENGTH, _PROOF_NEW = 3, 64, 16
# For float32 five times what the 270M shows (4e-4, in logits of some 40); a wrong name, orientation
# or norm shows as a gap of whole units. bfloat16 is allowed its rounding.
_GAP_LIMITS = {"float32": 2e-3, "bfloat16": 0.25}

# Frozen weights rounded from float32: 0.12 with the 270M's base on a line of text.
_ROUNDED_LIMIT = 0.5


@dataclass(frozen=True, slots=True)
class Export:
    """An export that was proven.

    Attributes:
        path: the directory.
        kind: merged or adapter.
        max_logit_gap: largest difference between the trainer's logits and those of the directory.
        limit: that it had to stay within.
        readers: what each reader of the directory found.
    """

    path: str
    kind: str
    max_logit_gap: float
    limit: float
    readers: dict[str, Any]

    def lines(self) -> list[str]:
        """The proof for people."""
        return [
            f"{name} reads the export: largest logit gap {found['max_logit_gap']:.2e} over "
            f"{found['tokens']} tokens (limit {self.limit:g}), "
            f"{'the same' if found['same_greedy_text'] else 'another'} greedy text"
            for name, found in self.readers.items()
        ]


def export(
    session: Session,
    recipe: Recipe,
    model_dir: Path,
    data: PreparedData,
    tokenizer: Tokenizer,
    out_dir: Path,
    say: Say,
    *,
    writes: bool = True,
) -> Export | None:
    """Write the export and prove it. The directory appears only when the proof holds.

    Every process of a run calls it, for sharded weights are gathered by all together; those that do
    not write get None.

    Raises:
        UserError: the directory exists and is not an export of ours, cannot be written, or what
            can be read from it differs from what was trained by more than the limit.
    """
    kind, dtype = recipe.run.export, recipe.run.export_dtype
    trained = _look(session, data, tokenizer)
    if not writes:
        session.export(None, kind=kind, dtype=dtype)
        return None
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}-", dir=out_dir.parent))
    try:
        say(f"writing {out_dir}")
        session.export(aside, kind=kind, dtype=dtype)
        _carry(model_dir, aside, kind, data)
        if kind == "merged" and dtype != "base":
            _name_dtype(aside / "config.json", dtype)
        say("proving that the written model is the trained one")
        readers, limit = _prove(trained, recipe, model_dir, tokenizer, aside)
        aside.chmod(0o755)
        if out_dir.exists():
            shutil.rmtree(out_dir)
        aside.rename(out_dir)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    gap = max(found["max_logit_gap"] for found in readers.values())
    done = Export(str(out_dir), kind, gap, limit, readers)
    write_json(out_dir / "tunesmith-proof.json", asdict(done))
    return done


def export_run(
    path: Path, out_dir: Path, *, kind: str | None, dtype: str | None, say: Say
) -> Export:
    """Export a run again, or one that has not ended.

    Args:
        path: run folder.
        out_dir: directory to write; it must not exist.
        kind, dtype: `run.export` and `run.export_dtype`; None keeps the recipe's.
        say: told what goes on.

    Raises:
        UserError: as `export`, the run has no checkpoint, or `kind` does not fit it.
    """
    if out_dir.exists():
        raise UserError(f"{out_dir} exists already", "Name a new directory.")
    # Loaded here by one process, however many trained it.
    alone = {"parallel.data": "null", "parallel.fsdp": "1"}
    wanted = {"run.export": kind, "run.export_dtype": dtype} | alone
    loaded = load_run(path, [f"{field}={value}" for field, value in wanted.items() if value])
    recipe = loaded.recipe
    if recipe.run.export == "none":
        raise UserError(
            "the recipe exports nothing", "Say what to write: --kind merged or adapter."
        )
    engine = load_engine(recipe.engine)
    engine.start()
    prepared = prepare_run(loaded, say)
    session = engine.open_trainer(recipe, prepared.model_dir)
    session.take_weights(RunDir(path), say, use_best=recipe.run.use_best)
    done = export(
        session, recipe, prepared.model_dir, prepared.data, prepared.tokenizer, out_dir, say
    )
    assert done is not None
    return done


def _carry(model_dir: Path, out_dir: Path, kind: str, data: PreparedData) -> None:
    """Copy what surrounds the weights; the chat template of training goes along."""
    for name in _CARRIED:
        source = model_dir / name
        if source.exists() and not (kind == "adapter" and name == "config.json"):
            shutil.copyfile(source, out_dir / name)
    if data.template is not None:
        (out_dir / _TEMPLATE).write_text(data.template.source, encoding="utf-8")


def _name_dtype(path: Path, dtype: str) -> None:
    """Have config.json say which type the weights have: loaders convert them to what it says."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for section in (config, config.get("text_config", {})):
        for name in ("dtype", "torch_dtype"):  # transformers 5's, and what it was before
            if name in section:
                section[name] = dtype
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Trained:
    """What the trained weights answer, to be found again in the export.

    Attributes:
        rows: sequences, int32 [T] each.
        logits: of each row, float32 [T, V].
        prompt: the beginning of the first row.
        greedy: its likeliest continuation, with the token that ends it if one does.
        choices: logits [V] that each token of `greedy` was likeliest by.
        held_dtype: type in which the trainer holds the frozen weights.
    """

    rows: list[np.ndarray]
    logits: list[np.ndarray]
    prompt: np.ndarray
    greedy: list[int]
    choices: list[np.ndarray]
    held_dtype: str

    def agrees(self, text: list[int], stop_ids: Sequence[int], limit: float) -> bool:
        """Whether a reader's greedy text is this one, or leaves it where two tokens are as likely.

        Args:
            text: without the token that ended it.
            stop_ids: tokens that may have ended it.
            limit: by how much a reader's logits may differ.
        """
        for step, (likeliest, logits) in enumerate(zip(self.greedy, self.choices, strict=True)):
            read = [text[step]] if step < len(text) else list(stop_ids)
            if likeliest not in read:
                return bool(logits[likeliest] - logits[read].max() <= 2 * limit)
        return True


def _look(session: Session, data: PreparedData, tokenizer: Tokenizer) -> _Trained:
    """Run the first examples of the evaluation rows, or of the training ones, cut to a length."""
    packed = data.eval or data.train
    count = min(_PROOF_ROWS, packed.num_examples)
    rows = [packed.example(i).ids[:_PROOF_LENGTH] for i in range(count)]
    prompt = rows[0][: max(2, len(rows[0]) // 2)]
    greedy: list[int] = []
    choices = []
    while len(greedy) < _PROOF_NEW and not (greedy and greedy[-1] in tokenizer.stop_ids):
        ids = np.concatenate([prompt, np.array(greedy, prompt.dtype)])
        choices.append(session.logits(ids)[-1])
        greedy.append(int(choices[-1].argmax()))
    return _Trained(
        rows, [session.logits(ids) for ids in rows], prompt, greedy, choices, session.held_dtype
    )


def _prove(
    trained: _Trained, recipe: Recipe, model_dir: Path, tokenizer: Tokenizer, out_dir: Path
) -> tuple[dict[str, Any], float]:
    adapter = recipe.run.export == "adapter"
    with tempfile.TemporaryDirectory() as scratch:
        logits = Path(scratch) / "logits.npz"
        np.savez(logits, *trained.logits)
        claim = {
            "model": str(model_dir.absolute() if adapter else out_dir.absolute()),
            "adapter": str(out_dir.absolute()) if adapter else None,
            "rows": [ids.tolist() for ids in trained.rows],
            "logits": str(logits),
            "greedy": {
                "prompt": trained.prompt.tolist(),
                "max_new_tokens": _PROOF_NEW,
                "stop_ids": list(tokenizer.stop_ids),
            },
            "readers": _readers(model_dir, adapter),
        }
        readers = _ask(claim, Path(scratch) / "claim.json")
    stored = "float32" if adapter else _embedding_dtype(out_dir)
    # Adapters that were trained beside weights rounded to bfloat16 come to lie on whole ones.
    rounded = trained.held_dtype == "bfloat16" and _embedding_dtype(model_dir) == "float32"
    limit = recipe.run.max_logit_gap or (_ROUNDED_LIMIT if rounded else _GAP_LIMITS[stored])
    for name, found in readers.items():
        gap, text = found["max_logit_gap"], found["greedy"]
        if not gap <= limit:
            raise UserError(
                f"the export is not what was trained: read by {name}, logits differ by up to "
                f"{gap:.3g}, above the limit of {limit:g}; nothing was exported",
                "With bfloat16 weights, rounding alone may do this: export with "
                "`run.export_dtype: float32`, or raise run.max_logit_gap.",
            )
        found["same_greedy_text"] = trained.agrees(text, tokenizer.stop_ids, limit)
        if limit <= _GAP_LIMITS["float32"] and not found["same_greedy_text"]:
            raise UserError(
                f"the export is not what was trained: read by {name}, it goes on with "
                f"{tokenizer.decode(text)!r}, and the trained weights with "
                f"{tokenizer.decode(trained.greedy)!r}; nothing was exported"
            )
        found["greedy"] = tokenizer.decode(text)
    return readers, limit


def _readers(model_dir: Path, adapter: bool) -> list[str]:
    """Who can read the export here: our own numpy where it knows the family, and transformers.

    Raises:
        UserError: nobody.
    """
    wanted = ("torch", "transformers", "peft") if adapter else ("torch", "transformers")
    readers = ["numpy"] if reference.knows(model_dir) else []
    if all(find_spec(name) for name in wanted):
        readers.append("transformers")
    if not readers:
        raise UserError(
            f"nothing here can read the export back: that needs {', '.join(wanted)}",
            "Install them with: pip install 'tunesmith[hf]'",
        )
    return readers


def _embedding_dtype(model_dir: Path) -> str:
    """Type of a directory's weights, from its embedding."""
    files = TensorFiles(model_dir)
    return files.dtype(next(key for key in files if key.endswith("embed_tokens.weight")))


def _ask(claim: dict[str, Any], path: Path) -> dict[str, Any]:
    """Have a fresh process check the claim.

    Raises:
        UserError: it cannot read the export.
    """
    write_json(path, claim)
    # No variable of this process's libraries reaches the other one, nor any accelerator.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tunesmith.prove", str(path)],
        capture_output=True,
        text=True,
        env=environment | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise UserError(
            "the export cannot be read back:\n" + done.stderr.strip()[-2000:],
            "Nothing was exported.",
        )
    return json.loads(done.stdout.strip().splitlines()[-1])
