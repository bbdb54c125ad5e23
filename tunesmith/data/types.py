"""What flows through the data path: rows, segments, token ids, batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Where:
    """Where a row came from, for messages: `file:line` (or row number for tables)."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row as read: named values and its place."""

    fields: dict[str, Any]
    where: Where


@dataclass(frozen=True, slots=True)
class Encoded:
    """One example as tokens.

    Attributes:
        ids: int32 [T], with exactly one BOS, at the front.
        target: bool [T]; `target[t]` says that predicting `ids[t]` from what precedes is trained.
    """

    ids: np.ndarray
    target: np.ndarray


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed sequences, ready for a step. All arrays are [B, T].

    Attributes:
        tokens: int32 input ids; padding is 0.
        targets: int32; `targets[b, t]` is the id to be predicted at position t (the next token of
            the same segment), 0 where `target_mask` is false.
        target_mask: bool; where there is a loss.
        segment_ids: int32; 0 is padding, segments of a sequence count from 1. A token attends to
            its own segment alone.
        positions: int32; restart at 0 in each segment.
    """

    tokens: np.ndarray
    targets: np.ndarray
    target_mask: np.ndarray
    segment_ids: np.ndarray
    positions: np.ndarray

    def rows(self, begin: int, count: int) -> Batch:
        """Some of its sequences."""
        some = slice(begin, begin + count)
        return Batch(**{name: getattr(self, name)[some] for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One evaluation row for tasks that generate.

    Attributes:
        fields: the row as read, so a task finds its gold answer.
        prompt: int32 [T], what the model is given: everything before the last answer, generation
            prompt included.
        where: the row's place.
    """

    fields: dict[str, Any]
    prompt: np.ndarray
    where: Where
