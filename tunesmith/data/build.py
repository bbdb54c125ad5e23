"""From files to tokenised rows on disk: read, check, choose, tokenise, fit, pack."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tunesmith.data.bad_rows import BadRow, BadRows, Skipped
from tunesmith.data.chat import ChatTemplate
from tunesmith.data.encode import encode_examples, prompt_of
from tunesmith.data.formats import Example, example_maker
from tunesmith.data.packing import cut, one_each, pack, split
from tunesmith.data.sources import read_rows
from tunesmith.data.stats import DataStats
from tunesmith.data.store import SideWriter, write_meta
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import Encoded
from tunesmith.errors import UserError
from tunesmith.recipe.schema import DataSection, Holdout, Rows

# Tokenised at once: enough to keep all cores busy, little enough to hold in memory.
_CHUNK_CHARS = 1 << 22
_CHUNK_EXAMPLES = 4096
_PROGRESS_SECONDS = 2.0

_FIRST, _SECOND, _NOT_PICKED = 0, 1, 2  # where a row goes


@dataclass(slots=True)
class _Side:
    """Training or evaluation data while they are written."""

    name: str
    rows: Rows
    writer: SideWriter
    bad: BadRows
    stats: DataStats = field(default_factory=DataStats)


class Builder:
    """Writes the data of one recipe into a directory, once.

    Args:
        data: the recipe's section.
        tokenizer: the model's.
        template: of conversations; None where no format has any.
        base_dir: where relative paths start.
        directory: there, and empty.
        progress: told now and then how far it is.
    """

    def __init__(
        self,
        data: DataSection,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        base_dir: Path,
        directory: Path,
        progress: Callable[[str], None],
    ) -> None:
        self._data = data
        self._tokenizer = tokenizer
        self._template = template
        self._base_dir = base_dir
        self._directory = directory
        self._progress = progress

    def build(self) -> None:
        """Writes everything.

        Raises:
            UserError: a file or row is bad, a row is too long, or no rows are left.
        """
        data = self._data
        sides = [self._side("train", data.train)]
        if data.eval is not None or data.holdout is not None:
            sides.append(self._side("eval", data.eval or data.train))
        try:
            if data.eval is None:
                self._add_rows(sides)
            else:
                self._add_rows(sides[:1])
                self._add_rows(sides[1:])
            for side in sides:
                self._finish(side)
        finally:
            for side in sides:
                side.writer.close()
        leaked = sum(
            np.isin(side.writer.digests, sides[0].writer.digests).sum() for side in sides[1:]
        )
        statistics = {side.name: side.stats.to_json() for side in sides}
        write_meta(self._directory, {"statistics": statistics, "leaked_examples": int(leaked)})

    def _side(self, name: str, rows: Rows) -> _Side:
        side = _Side(name, rows, SideWriter(self._directory / name), BadRows(self._data.bad_rows))
        side.stats.rows_skipped = side.bad.by_kind
        return side

    def _add_rows(self, sides: Sequence[_Side]) -> None:
        """Adds the rows of the first side's files to it, or to two sides as the hold-out says."""
        first, rows = sides[0], sides[0].rows
        goes_to = self._draw(rows, self._data.holdout if len(sides) > 1 else None)
        chunk: list[tuple[_Side, Example]] = []
        chars = 0
        clock = _Clock(self._progress, first.name)
        for number, example in enumerate(self._usable(rows, first.bad, first.stats)):
            place = _FIRST if goes_to is None else goes_to[number]
            if place == _NOT_PICKED:
                first.stats.rows_not_picked += 1
                continue
            if place == _SECOND:
                first.stats.rows_held_out += 1
                sides[1].stats.rows_read += 1
            chunk.append((sides[place], example))
            chars += sum(len(segment.text) for segment in example.segments)
            if chars >= _CHUNK_CHARS or len(chunk) >= _CHUNK_EXAMPLES:
                self._add_chunk(chunk)
                clock.tick(len(chunk), chars)
                chunk, chars = [], 0
        self._add_chunk(chunk)

    def _usable(self, rows: Rows, bad: BadRows, stats: DataStats) -> Iterator[Example]:
        """Examples of the rows that are neither bad nor empty, `limit` of them at most."""

        def on_bad(bad_row: BadRow) -> None:
            stats.rows_read += 1
            bad.add(bad_row)

        to_example = example_maker(rows, self._tokenizer, self._template)
        limit = rows.limit if rows.pick == "first" else None
        count = 0
        for row in read_rows(rows, self._base_dir, on_bad):
            stats.rows_read += 1
            try:
                example = to_example(row)
            except BadRow as bad_row:
                bad.add(bad_row)
                continue
            bad.check()
            if example is None:
                stats.rows_empty += 1
            elif not bad.stopping:
                yield example
                count += 1
            if count == limit:
                break
        bad.check(at_end=True)

    def _draw(self, rows: Rows, holdout: Holdout | None) -> np.ndarray | None:
        """Draws by `data.seed` where each usable row goes; None if all go to the first side.

        To draw an exact number of rows evenly, they are counted before; so the files are read
        twice, which costs little beside tokenising.
        """
        limit = rows.limit if rows.pick == "random" else None
        if holdout is None and limit is None:
            return None
        total = sum(1 for _ in self._usable(rows, BadRows(self._data.bad_rows), DataStats()))
        rng = np.random.default_rng(self._data.seed)
        goes_to = np.full(total, _FIRST, np.int8)
        if limit is not None and limit < total:
            goes_to[:] = _NOT_PICKED
            goes_to[rng.choice(total, limit, replace=False)] = _FIRST
        if holdout is not None:
            used = np.flatnonzero(goes_to == _FIRST)
            count = holdout.rows or max(1, round((holdout.fraction or 0) * len(used)))
            if count >= len(used):
                raise UserError(
                    f"`data.holdout` takes {count:,} rows, but there are only {len(used):,}",
                    "Hold out fewer rows.",
                )
            goes_to[rng.choice(used, count, replace=False)] = _SECOND
        return goes_to

    def _add_chunk(self, chunk: Sequence[tuple[_Side, Example]]) -> None:
        examples = [example for _, example in chunk]
        encoded = list(encode_examples(examples, self._tokenizer))
        self._stop_at_long_rows(chunk, encoded)
        for (side, example), result in zip(chunk, encoded, strict=True):
            if isinstance(result, BadRow):
                side.bad.add(result)
                continue
            side.stats.longest_row = max(side.stats.longest_row, len(result.ids))
            pieces = self._fit(side, example, result)
            if pieces:
                side.writer.add_row(pieces)
                if side.name == "eval":
                    side.writer.keep(example.row, prompt_of(result))
        for side, _ in chunk:
            side.bad.check(at_end=True)

    def _stop_at_long_rows(
        self, chunk: Sequence[tuple[_Side, Example]], encoded: Sequence[Encoded | BadRow]
    ) -> None:
        limit, policy = self._data.max_length, self._data.long_rows
        long = [
            (len(result.ids), example.row.where)
            for (side, example), result in zip(chunk, encoded, strict=True)
            if isinstance(result, Encoded)
            and len(result.ids) > limit
            and (policy == "stop" or (policy == "split" and side.rows.format != "text"))
        ]
        if long:
            length, where = long[0]
            longest = max(length for length, _ in long)
            raise UserError(
                f"{where}: the row has {length:,} tokens, `data.max_length` is {limit:,}; of the "
                f"{len(chunk):,} rows at hand {len(long):,} are longer, up to {longest:,}",
                "Raise `data.max_length`, or set `data.long_rows` to cut (the end is lost), split "
                "(several sequences, format text alone) or skip (left out and counted).",
            )

    def _fit(self, side: _Side, example: Example, encoded: Encoded) -> list[Encoded]:
        """The row as examples of at most `max_length` tokens; none if it is left out."""
        length, limit = len(encoded.ids), self._data.max_length
        if length <= limit:
            return [encoded]
        if self._data.long_rows == "split":
            side.stats.rows_split += 1
            return list(split(encoded, limit))
        if self._data.long_rows == "skip":
            skipped = side.stats.rows_skipped.setdefault("longer than max_length", Skipped())
            skipped.add(f"{example.row.where}: has {length:,} tokens")
            return []
        front = cut(encoded, limit)
        if not front.target.any():
            side.stats.rows_no_target += 1
            return []
        side.stats.rows_truncated += 1
        side.stats.truncated_tokens += length - limit
        return [front]

    def _finish(self, side: _Side) -> None:
        """Packs what was added and completes the statistics."""
        stats, writer = side.stats, side.writer
        lengths = writer.lengths
        if not len(lengths):
            hint = "Correct the rows, or change what leaves them out."
            if not stats.rows_read:
                rows = self._data.train if side.name == "train" else self._data.eval
                hint = f"There are none in {', '.join(rows.files) if rows else 'the files'}."
            raise UserError(
                "\n  ".join([f"no rows are left for {side.name}", *stats.lines()[:-2]]), hint
            )
        packed = self._data.packing
        packing = (
            pack(lengths, self._data.max_length, seed=self._data.seed)
            if packed
            else one_each(len(lengths))
        )
        writer.finish(packing)
        stats.examples = len(lengths)
        stats.duplicates = len(lengths) - len(np.unique(writer.digests))
        stats.sequences = len(packing.offsets) - 1
        stats.tokens = int(lengths.sum())
        stats.target_tokens = writer.target_tokens
        stats.padding_tokens = stats.sequences * self._data.max_length - stats.tokens


class _Clock:
    """Tells the progress every few seconds."""

    def __init__(self, progress: Callable[[str], None], name: str) -> None:
        self._progress, self._name = progress, name
        self._started = self._told = time.monotonic()
        self._rows = self._chars = 0

    def tick(self, rows: int, chars: int) -> None:
        """Adds rows that are done."""
        self._rows += rows
        self._chars += chars
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            megabytes = self._chars / 1e6
            rate = megabytes / (now - self._started)
            self._progress(
                f"tokenised {self._rows:,} rows for {self._name} "
                f"({megabytes:,.0f} MB, {rate:.1f} MB/s)"
            )
