"""Counts of what became of the rows; nothing is dropped without being counted here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tunesmith.data.bad_rows import Skipped


@dataclass(slots=True)
class DataStats:
    """What became of one set of rows.

    `rows_read` is the sum of rows skipped, empty, not picked, held out, without target, and used.

    Attributes:
        rows_read: rows met in the files, up to `limit`.
        rows_skipped: rows left out by choice (`bad_rows`, `long_rows`), by reason.
        rows_empty: rows without text.
        rows_not_picked: rows that `limit` with `pick: random` passed over.
        rows_held_out: rows that went to the other side of a hold-out.
        rows_no_target: rows of which a cut left no target, left out.
        rows_truncated: rows whose end was cut off.
        rows_split: rows that became several examples.
        truncated_tokens: tokens that were cut off.
        longest_row: tokens of the longest row, before any cut.
        duplicates: examples that equal an earlier one.
        examples: what is trained on; a split row is several.
        sequences: examples packed to `max_length`.
        tokens: of all examples.
        target_tokens: tokens with a loss.
        padding_tokens: places in sequences that hold no token.
    """

    rows_read: int = 0
    rows_skipped: dict[str, Skipped] = field(default_factory=dict)
    rows_empty: int = 0
    rows_not_picked: int = 0
    rows_held_out: int = 0
    rows_no_target: int = 0
    rows_truncated: int = 0
    rows_split: int = 0
    truncated_tokens: int = 0
    longest_row: int = 0
    duplicates: int = 0
    examples: int = 0
    sequences: int = 0
    tokens: int = 0
    target_tokens: int = 0
    padding_tokens: int = 0

    @property
    def skipped_count(self) -> int:
        """Rows left out by choice, over all reasons."""
        return sum(skipped.count for skipped in self.rows_skipped.values())

    @property
    def padding_share(self) -> float:
        """Share of places in sequences that hold no token."""
        return self.padding_tokens / max(1, self.padding_tokens + self.tokens)

    @property
    def target_share(self) -> float:
        """Share of tokens with a loss."""
        return self.target_tokens / max(1, self.tokens)

    def to_json(self) -> dict[str, Any]:
        """All counts and shares as plain values."""
        shares = {"padding_share": self.padding_share, "target_share": self.target_share}
        return asdict(self) | shares

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> DataStats:
        """The inverse of `to_json`."""
        names = {known.name for known in fields(cls)}
        own = {name: value for name, value in values.items() if name in names}
        own["rows_skipped"] = {kind: Skipped(**told) for kind, told in own["rows_skipped"].items()}
        return cls(**own)

    def lines(self) -> list[str]:
        """The counts for people, zeros left out."""
        left_out = [
            (self.rows_empty, "empty"),
            (self.rows_not_picked, "not picked"),
            (self.rows_held_out, "held out"),
            (self.rows_no_target, "without a target after the cut"),
            (self.skipped_count, "skipped"),
        ]
        told = [f"{count:,} {what}" for count, what in left_out if count]
        lines = [f"rows read: {self.rows_read:,}" + (f" ({', '.join(told)})" if told else "")]
        for kind, skipped in self.rows_skipped.items():
            lines.append(f"  skipped, {kind}: {skipped.count:,}, first {'; '.join(skipped.places)}")
        if self.rows_truncated:
            lines.append(
                f"rows cut: {self.rows_truncated:,}, {self.truncated_tokens:,} tokens lost"
            )
        if self.rows_split:
            lines.append(f"rows split: {self.rows_split:,}")
        lines.append(
            f"examples: {self.examples:,} in {self.sequences:,} sequences, longest row "
            f"{self.longest_row:,} tokens"
            + f", {self.duplicates:,} repeated"
            * bool(self.duplicates)
        )
        lines.append(
            f"tokens: {self.tokens:,}, of which targets {self.target_tokens:,} "
            f"({self.target_share:.1%}); padding {self.padding_share:.1%} of the sequences"
        )
        return lines
