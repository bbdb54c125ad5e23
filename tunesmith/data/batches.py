"""Packed sequences, batch by batch: a batch is a pure function of data, seed and step."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from tunesmith.data.packing import one_each, pack
from tunesmith.data.store import Arrays
from tunesmith.data.types import Batch, Encoded
from tunesmith.errors import UserError

_PADDING = -1  # a sequence that is not there


class PackedDataset:
    """Sequences of `max_length` tokens, in each of which one or several examples stand.

    Sequences are put together when a batch is asked for; nothing but that batch is read.

    Args:
        arrays: as stored.
        max_length: T, tokens of a sequence.
    """

    def __init__(self, arrays: Arrays, max_length: int) -> None:
        self._arrays = arrays
        self.max_length = max_length

    @property
    def num_sequences(self) -> int:
        """Sequences in an epoch."""
        return len(self._arrays.sequence_targets)

    @property
    def num_examples(self) -> int:
        """Examples; a row that was split is several."""
        return len(self._arrays.rows)

    @property
    def num_tokens(self) -> int:
        """Tokens in an epoch, padding left out."""
        return int(self._arrays.offsets[self.num_examples])

    @property
    def num_target_tokens(self) -> int:
        """Tokens with a loss in an epoch."""
        return int(self._arrays.sequence_targets.sum())

    def max_target_tokens(self, batch_size: int) -> int:
        """The most target tokens that any `batch_size` sequences hold together."""
        counts = np.sort(self._arrays.sequence_targets)
        return int(counts[-batch_size:].sum())

    def steps_per_epoch(self, batch_size: int) -> int:
        """Batches in an epoch; the last one may be partly padding."""
        return -(-self.num_sequences // batch_size)

    def example(self, index: int) -> Encoded:
        """One example as it is trained, in the order of the files."""
        begin, end = self._arrays.offsets[index : index + 2]
        return Encoded(
            np.array(self._arrays.tokens[begin:end]), np.array(self._arrays.targets[begin:end])
        )

    def batch(
        self, step: int, *, batch_size: int, seed: int, shard: tuple[int, int] = (0, 1)
    ) -> Batch:
        """The batch of a step, counted from 0 over all epochs; each has a seeded order of its own.

        Args:
            step: any step, in any order; nothing is remembered.
            batch_size: B, sequences of the global batch.
            seed: `train.seed`.
            shard: (index, count) of a host; it gets its contiguous part of the global batch.

        Returns:
            Arrays of [B / count, T]. All hosts have the same number of steps, whatever their share
            of the last one holds.

        Raises:
            UserError: the batch cannot be shared equally.
        """
        index, count = shard
        if batch_size % count:
            raise UserError(
                f"a batch of {batch_size} sequences cannot be shared by {count} hosts",
                f"Set `train.batch_size` to a multiple of {count}.",
            )
        epoch, at = divmod(step, self.steps_per_epoch(batch_size))
        chosen = _order(self.num_sequences, seed, epoch)[at * batch_size : (at + 1) * batch_size]
        chosen = np.pad(chosen, (0, batch_size - len(chosen)), constant_values=_PADDING)
        share = batch_size // count
        return self._gather(chosen[index * share : (index + 1) * share])

    def in_order(self, batch_size: int) -> Iterator[Batch]:
        """All sequences once, in stored order, for evaluation; the last batch is padded."""
        for begin in range(0, self.num_sequences, batch_size):
            chosen = np.arange(begin, begin + batch_size)
            yield self._gather(np.where(chosen < self.num_sequences, chosen, _PADDING))

    def first_rows(self, count: int) -> PackedDataset:
        """The same with the first `count` rows of the files alone, packed anew."""
        arrays = self._arrays
        examples = int(np.searchsorted(arrays.rows, count))
        if examples == self.num_examples:
            return self
        offsets = arrays.offsets[: examples + 1]
        alone = self.num_sequences == self.num_examples
        packing = one_each(examples) if alone else pack(np.diff(offsets), self.max_length, seed=0)
        targets = np.add.reduceat(arrays.targets[: offsets[-1]], offsets[:-1], dtype=np.int64)
        first = Arrays(
            tokens=arrays.tokens,
            targets=arrays.targets,
            offsets=offsets,
            rows=arrays.rows[:examples],
            members=packing.members,
            sequences=packing.offsets,
            sequence_targets=np.add.reduceat(targets[packing.members], packing.offsets[:-1]),
        )
        return PackedDataset(first, self.max_length)

    def _gather(self, sequences: np.ndarray) -> Batch:
        """Puts sequences together. B is their number, T is `max_length`."""
        arrays = self._arrays
        shape = (len(sequences), self.max_length)
        tokens, targets, segment_ids, positions = (np.zeros(shape, np.int32) for _ in range(4))
        target_mask = np.zeros(shape, bool)
        for b, sequence in enumerate(sequences):
            if sequence == _PADDING:
                continue
            members = arrays.members[arrays.sequences[sequence] : arrays.sequences[sequence + 1]]
            at = 0
            for segment, example in enumerate(members, 1):
                begin, end = arrays.offsets[example : example + 2]
                place = slice(at, at := at + end - begin)
                tokens[b, place] = arrays.tokens[begin:end]
                segment_ids[b, place] = segment
                positions[b, place] = np.arange(end - begin)
                # The last token of a segment has nothing to predict.
                target_mask[b, place.start : place.stop - 1] = arrays.targets[begin + 1 : end]
        targets[:, :-1] = np.where(target_mask[:, :-1], tokens[:, 1:], 0)
        return Batch(tokens, targets, target_mask, segment_ids, positions)


@functools.lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the sequences in an epoch, the same on every host."""
    return np.random.default_rng([seed, epoch]).permutation(count)
