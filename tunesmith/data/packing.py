"""Rows into sequences of one length: cut, split or left out where too long, packed where short."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tunesmith.data.types import Encoded

# Rows considered together. Bins of a window are as good as full, larger windows gain nothing.
_WINDOW = 8192


@dataclass(frozen=True, slots=True)
class Packing:
    """Which examples stand in which sequence.

    Attributes:
        members: int64 [examples]; indices of examples, those of one sequence side by side.
        offsets: int64 [sequences + 1]; sequence i is `members[offsets[i]:offsets[i + 1]]`.
    """

    members: np.ndarray
    offsets: np.ndarray


def pack(lengths: np.ndarray, capacity: int, *, seed: int) -> Packing:
    """Packs all examples, each whole, into sequences of at most `capacity` tokens.

    Best-fit decreasing within windows of examples in a seeded order: neighbours in the file do not
    end up together, and the result depends on the arguments alone.

    Args:
        lengths: [examples], each from 1 to `capacity`.
        capacity: `data.max_length`.
        seed: of the order.
    """
    order = np.random.default_rng(seed).permutation(len(lengths))
    bins: list[list[int]] = []
    for begin in range(0, len(order), _WINDOW):
        window = order[begin : begin + _WINDOW]
        window = window[np.argsort(-lengths[window], kind="stable")]
        bins.extend(_best_fit(window.tolist(), lengths[window].tolist(), capacity))
    counts = np.array([len(members) for members in bins], np.int64)
    members = [index for members in bins for index in members]
    return Packing(np.array(members, np.int64), np.concatenate([[0], np.cumsum(counts)]))


def one_each(count: int) -> Packing:
    """One example in each sequence, in order."""
    return Packing(np.arange(count), np.arange(count + 1))


def _best_fit(indices: list[int], lengths: list[int], capacity: int) -> list[list[int]]:
    """Puts each example, longest first, into the fullest bin that still has room."""
    bins: list[list[int]] = []
    with_room: list[list[list[int]]] = [[] for _ in range(capacity + 1)]  # [free places] → bins
    rooms = 0  # bit n: some bin has n free places
    for index, length in zip(indices, lengths, strict=True):
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            members = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, members = capacity, []
            bins.append(members)
        members.append(index)
        with_room[room - length].append(members)
        rooms |= 1 << (room - length)
    return bins


def cut(encoded: Encoded, max_length: int) -> Encoded:
    """The first `max_length` tokens."""
    return Encoded(encoded.ids[:max_length], encoded.target[:max_length])


def split(encoded: Encoded, max_length: int) -> Iterator[Encoded]:
    """Pieces of at most `max_length` tokens, each with BOS in front; no target is lost."""
    for begin in range(1, len(encoded.ids), max_length - 1):
        end = begin + max_length - 1
        yield Encoded(
            np.concatenate([encoded.ids[:1], encoded.ids[begin:end]]),
            np.concatenate([encoded.target[:1], encoded.target[begin:end]]),
        )
