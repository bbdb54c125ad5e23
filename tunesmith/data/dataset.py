"""A recipe's data, tokenised once, kept under a fingerprint, and ready to be asked for batches."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tunesmith.data.batches import PackedDataset
from tunesmith.data.build import Builder
from tunesmith.data.chat import ChatTemplate, choose_template
from tunesmith.data.sources import Found, find_files
from tunesmith.data.stats import DataStats
from tunesmith.data.store import VERSION, read_arrays, read_eval_rows, read_meta
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import EvalRow
from tunesmith.errors import UserError
from tunesmith.recipe.schema import DataSection, Recipe
from tunesmith.runs.rundir import write_text

__all__ = ["PackedDataset", "PreparedData", "prepare"]

_LOW_TARGET_SHARE = 0.1
_HIGH_PADDING_SHARE = 0.25
_HIGH_DUPLICATE_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class PreparedData:
    """What a run trains and evaluates on.

    Attributes:
        train, train_stats: training data, and what became of the rows.
        eval, eval_stats: evaluation data; None if the recipe names none.
        template: of conversations; None where no format has any.
        fingerprint: of content, tokenizer, template and options: equal means equal batches.
        warnings: what a user should look at before training.
        directory: where the data lie.
    """

    train: PackedDataset
    eval: PackedDataset | None
    train_stats: DataStats
    eval_stats: DataStats | None
    template: ChatTemplate | None
    fingerprint: str
    warnings: list[str]
    directory: Path

    def eval_rows(self, limit: int | None = None) -> Iterator[EvalRow]:
        """Evaluation rows with fields and prompts, in the files' order; none without evaluation."""
        if self.eval is not None:
            yield from islice(read_eval_rows(self.directory / "eval"), limit)


def prepare(
    recipe: Recipe,
    tokenizer: Tokenizer,
    *,
    base_dir: Path,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> PreparedData:
    """Reads, checks, tokenises and packs the data, or finds that done already.

    Every process of a run comes to the same result by itself.

    Args:
        recipe: of which `data` counts, and `train.batch_size` for warnings.
        tokenizer: the model's.
        base_dir: where relative paths start: the recipe's folder.
        cache_dir: root of caches; by default TUNESMITH_CACHE, else ~/.cache/tunesmith.
        progress: told now and then how far it is.

    Raises:
        UserError: something is wrong with a file, a row, the template or the options; before
            anything is tokenised where that can be seen before.
    """
    data = recipe.data
    if data.max_length < 2:
        raise UserError("`data.max_length` 1 leaves no room for a target", "Raise it.")
    template = _template(data, tokenizer, base_dir)
    root = Path(cache_dir or os.environ.get("TUNESMITH_CACHE") or "~/.cache/tunesmith").expanduser()
    sides = {"train": data.train, "eval": data.eval}
    found = {name: find_files(rows, base_dir) for name, rows in sides.items() if rows is not None}
    fingerprint = _fingerprint(data, tokenizer, template, found, root / "hashes")
    directory = root / "data" / fingerprint
    meta = read_meta(directory)
    if meta is None:
        tell = progress or (lambda line: None)
        _build_aside(
            directory,
            lambda aside: Builder(
                data, tokenizer, template, base_dir=base_dir, directory=aside, progress=tell
            ).build(),
        )
        meta = read_meta(directory)
        assert meta is not None
    statistics = {name: DataStats.from_json(told) for name, told in meta["statistics"].items()}
    packed = {
        name: PackedDataset(read_arrays(directory / name), data.max_length) for name in statistics
    }
    left_aside = [file for some in found.values() for file in some.left_aside]
    return PreparedData(
        train=packed["train"],
        eval=packed.get("eval"),
        train_stats=statistics["train"],
        eval_stats=statistics.get("eval"),
        template=template,
        fingerprint=fingerprint,
        warnings=_warnings(recipe, statistics, meta["leaked_examples"], left_aside),
        directory=directory,
    )


def _template(data: DataSection, tokenizer: Tokenizer, base_dir: Path) -> ChatTemplate | None:
    formats = {rows.format for rows in (data.train, data.eval) if rows is not None}
    if not formats & {"chat", "template"}:
        return None
    return choose_template(tokenizer, data.chat_template, base_dir)


def _fingerprint(
    data: DataSection,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    found: dict[str, Found],
    hashes: Path,
) -> str:
    """Digest of all that decides the batches; where files lie and how they are named does not."""
    options = data.model_dump(mode="json", exclude={"chat_template": True})
    for name, some in found.items():
        options[name]["files"] = [
            [file.kind, file.gzipped, file.identity(lambda path: _sha256(path, hashes))]
            for file in some.files
        ]
    told: list[Any] = [VERSION, options, tokenizer.fingerprint, template and template.source]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:24]


def _sha256(path: Path, hashes: Path) -> str:
    """Digest of a file's content, remembered while its size and time of change stay."""
    status = path.stat()
    key = f"{path.resolve()}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
    memory = hashes / hashlib.sha256(key.encode()).hexdigest()[:24]
    try:
        return memory.read_text("ascii")
    except OSError:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    write_text(memory, digest)
    return digest


def _build_aside(directory: Path, build: Callable[[Path], None]) -> None:
    """Has the directory made under another name and renames it when it is whole.

    A directory of the same name that is damaged is replaced; one that another process has finished
    in the meantime stays.
    """
    aside = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
        build(aside)
        if directory.exists() and read_meta(directory) is None:
            shutil.rmtree(directory)
        try:
            aside.rename(directory)
        except OSError:
            if read_meta(directory) is None:
                raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT):
            raise
        raise UserError(
            f"tokenised data cannot be written to {directory.parent}: {error.strerror}",
            "Free some room, or set TUNESMITH_CACHE to another directory.",
        ) from error
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def _warnings(
    recipe: Recipe, statistics: dict[str, DataStats], leaked: int, left_aside: list[str]
) -> list[str]:
    """What a user should look at before training, most serious first."""
    warnings = []
    if leaked:
        warnings.append(
            f"{leaked:,} of {statistics['eval'].examples:,} evaluation examples are also training "
            "examples: evaluation will look better than it is"
        )
    for name, stats in statistics.items():
        warnings += [f"{name}: {warning}" for warning in _side_warnings(recipe, stats)]
    train, batch = statistics["train"], recipe.train.batch_size
    if train.sequences < batch:
        warnings.append(
            f"train: {train.sequences:,} sequences do not fill one batch of {batch:,}; "
            "lower `train.batch_size` or `data.max_length`, or add rows"
        )
    if left_aside:
        names = ", ".join(left_aside[:5]) + (", …" if len(left_aside) > 5 else "")
        warnings.append(f"{len(left_aside):,} files are no data files and were left aside: {names}")
    return warnings


def _side_warnings(recipe: Recipe, stats: DataStats) -> Iterator[str]:
    if stats.skipped_count:
        yield f"{stats.skipped_count:,} of {stats.rows_read:,} rows were skipped"
    if stats.rows_no_target:
        yield (
            f"{stats.rows_no_target:,} rows were left out: no target is left after the cut to "
            f"{recipe.data.max_length:,} tokens"
        )
    if stats.rows_truncated:
        yield (
            f"{stats.rows_truncated:,} rows were cut: {stats.truncated_tokens:,} tokens are lost, "
            "the ends of answers among them"
        )
    if stats.target_share < _LOW_TARGET_SHARE:
        yield f"only {stats.target_share:.1%} of the tokens are trained, the rest is prompt"
    if stats.padding_share > _HIGH_PADDING_SHARE and stats.sequences > 1:
        yield (
            f"{stats.padding_share:.0%} of the sequences is padding; "
            + ("lower `data.max_length`" if recipe.data.packing else "set `data.packing: true`")
        )
    if stats.duplicates > _HIGH_DUPLICATE_SHARE * stats.examples:
        yield f"{stats.duplicates:,} of {stats.examples:,} examples repeat an earlier one"
