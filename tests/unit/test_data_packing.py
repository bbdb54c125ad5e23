"""Packing rows into sequences and cutting batches from them. G numbers: known ways to go wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunesmith.data.batches import PackedDataset
from tunesmith.data.packing import cut, one_each, pack, split
from tunesmith.data.store import SideWriter, read_arrays
from tunesmith.data.types import Batch, Encoded
from tunesmith.errors import UserError

BOS = 2


def row(*ids: int, targets: str | None = None) -> Encoded:
    """An example; in `targets` each x is a target."""
    marks = targets or "." + "x" * (len(ids) - 1)
    return Encoded(np.array(ids, np.int32), np.array([mark == "x" for mark in marks]))


def dataset(
    folder: Path, rows: list[Encoded], max_length: int = 8, *, packed: bool = True
) -> PackedDataset:
    directory = folder / f"side{len(list(folder.iterdir()))}"
    writer = SideWriter(directory)
    for encoded in rows:
        writer.add_row([encoded])
    lengths = writer.lengths
    writer.finish(pack(lengths, max_length, seed=0) if packed else one_each(len(lengths)))
    return PackedDataset(read_arrays(directory), max_length)


def numbered(folder: Path, count: int, *, packed: bool = False) -> PackedDataset:
    """Rows [BOS, n] for n from 100 on, so a row is known by its token."""
    return dataset(folder, [row(BOS, 100 + n) for n in range(count)], 2, packed=packed)


def row_numbers(batch: Batch) -> list[int]:
    return [int(id) - 100 for id in batch.tokens[:, 1] if id]


# --- packing ------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 16), max_size=60), st.integers(0, 3))
def test_every_example_stands_in_one_sequence_whole(lengths: list[int], seed: int) -> None:
    packing = pack(np.array(lengths, np.int64), 16, seed=seed)
    assert sorted(packing.members) == list(range(len(lengths)))
    for begin, end in zip(packing.offsets[:-1], packing.offsets[1:], strict=True):
        assert 0 < sum(lengths[member] for member in packing.members[begin:end]) <= 16


def test_packing_is_tight_and_a_function_of_the_seed() -> None:
    lengths = np.random.default_rng(0).integers(5, 200, 20_000)
    packing = pack(lengths, 256, seed=1)
    sequences = len(packing.offsets) - 1
    assert lengths.sum() / (sequences * 256) > 0.99
    again = pack(lengths, 256, seed=1)
    assert (again.members == packing.members).all()
    assert not (pack(lengths, 256, seed=2).members == packing.members).all()


def test_neighbours_in_the_file_are_not_packed_together() -> None:
    lengths = np.full(1000, 8)
    packing = pack(lengths, 16, seed=0)
    pairs = packing.members.reshape(-1, 2)
    assert (abs(pairs[:, 0] - pairs[:, 1]) == 1).mean() < 0.02


def test_cut_keeps_the_front() -> None:
    front = cut(row(BOS, 5, 6, 7, targets="..xx"), 3)
    assert front.ids.tolist() == [BOS, 5, 6]
    assert front.target.tolist() == [False, False, True]


@given(st.integers(2, 40), st.integers(2, 12))
def test_split_gives_every_piece_a_bos_and_loses_no_target(length: int, max_length: int) -> None:
    """G2."""
    whole = row(BOS, *range(100, 100 + length - 1))
    pieces = list(split(whole, max_length))
    assert all(len(piece.ids) <= max_length and piece.ids[0] == BOS for piece in pieces)
    assert all(not piece.target[0] and piece.target[1:].all() for piece in pieces)
    assert [id for piece in pieces for id in piece.ids[1:]] == whole.ids[1:].tolist()


# --- one batch ----------------------------------------------------------------------------------


def test_packed_sequence_keeps_its_rows_apart(tmp_path: Path) -> None:
    """G11: segments count from 1, positions restart, no target crosses from one row to the next."""
    rows = [row(BOS, 11, 12, 13, targets="..xx"), row(BOS, 21, 22, targets=".xx")]
    batch = dataset(tmp_path, rows).batch(0, batch_size=1, seed=0)
    assert batch.tokens.tolist() == [[BOS, 11, 12, 13, BOS, 21, 22, 0]]
    assert batch.segment_ids.tolist() == [[1, 1, 1, 1, 2, 2, 2, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 0]]
    assert batch.target_mask.tolist() == [[False, True, True, False, True, True, False, False]]
    assert batch.targets.tolist() == [[0, 12, 13, 0, 21, 22, 0, 0]]
    assert batch.tokens.dtype == batch.targets.dtype == np.int32
    assert batch.positions.dtype == batch.segment_ids.dtype == np.int32


def test_row_of_full_length(tmp_path: Path) -> None:
    batch = dataset(tmp_path, [row(BOS, 3, 4, 5)], 4).batch(0, batch_size=1, seed=0)
    assert batch.tokens.tolist() == [[BOS, 3, 4, 5]]
    assert batch.targets.tolist() == [[3, 4, 5, 0]]
    assert batch.target_mask.tolist() == [[True, True, True, False]]


def test_editing_one_row_leaves_its_neighbour_as_it_was(tmp_path: Path) -> None:
    """G11."""
    second = row(BOS, 21, 22)
    before = dataset(tmp_path, [row(BOS, 11, 12, 13), second]).batch(0, batch_size=1, seed=0)
    after = dataset(tmp_path, [row(BOS, 91, 92, 93), second]).batch(0, batch_size=1, seed=0)
    for name in ("tokens", "targets", "target_mask", "segment_ids", "positions"):
        assert (getattr(before, name)[0, 4:] == getattr(after, name)[0, 4:]).all()


def test_counts(tmp_path: Path) -> None:
    rows = [row(BOS, 1, 1, 1, targets="...x"), row(BOS, 1, 1), row(BOS, 1, 1, 1, 1, 1, 1)]
    data = dataset(tmp_path, rows)
    assert (data.num_sequences, data.num_examples) == (2, 3)
    assert (data.num_tokens, data.num_target_tokens) == (14, 1 + 2 + 6)
    assert data.max_target_tokens(1) == 6
    assert data.max_target_tokens(2) == data.max_target_tokens(5) == 9
    batches = list(data.in_order(1))
    assert sum(batch.target_mask.sum() for batch in batches) == 9
    assert data.example(1).ids.tolist() == [BOS, 1, 1]


# --- steps, epochs, hosts -----------------------------------------------------------------------


def test_an_epoch_gives_every_row_once_and_pads_the_last_batch(tmp_path: Path) -> None:
    data = numbered(tmp_path, 23)
    assert data.steps_per_epoch(4) == 6
    batches = [data.batch(step, batch_size=4, seed=7) for step in range(6)]
    assert sorted(n for batch in batches for n in row_numbers(batch)) == list(range(23))
    last = batches[-1]
    assert last.tokens.shape == (4, 2)
    assert last.segment_ids[3].tolist() == [0, 0]
    assert not last.target_mask[3].any()


def test_a_batch_depends_on_step_and_seed_alone(tmp_path: Path) -> None:
    """G22: a resumed run asks for later steps straight away and gets the same batches."""
    data = numbered(tmp_path, 23)
    straight = [row_numbers(data.batch(step, batch_size=4, seed=7)) for step in range(18)]
    fresh = PackedDataset(data._arrays, data.max_length)
    for step in (17, 3, 9, 8):
        assert row_numbers(fresh.batch(step, batch_size=4, seed=7)) == straight[step]
    assert straight[:6] != straight[6:12] != straight[12:]  # each epoch has an order of its own
    other = [row_numbers(data.batch(step, batch_size=4, seed=8)) for step in range(6)]
    assert other != straight[:6]


def test_hosts_share_every_batch_and_end_at_the_same_step(tmp_path: Path) -> None:
    """G37: two hosts, 23 rows; each has as many steps as the other, together the whole batch."""
    data = numbered(tmp_path, 23)
    steps = data.steps_per_epoch(4)
    for step in range(2 * steps):
        whole = data.batch(step, batch_size=4, seed=0)
        shares = [data.batch(step, batch_size=4, seed=0, shard=(host, 2)) for host in range(2)]
        assert [share.tokens.shape for share in shares] == [(2, 2), (2, 2)]
        for name in ("tokens", "targets", "target_mask", "segment_ids", "positions"):
            joined = np.concatenate([getattr(share, name) for share in shares])
            assert (joined == getattr(whole, name)).all()


def test_batch_that_hosts_cannot_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a batch of 6 sequences cannot be shared by 4 hosts"):
        numbered(tmp_path, 10).batch(0, batch_size=6, seed=0, shard=(0, 4))


def test_in_order_is_the_files_order_without_packing(tmp_path: Path) -> None:
    batches = list(numbered(tmp_path, 5).in_order(2))
    assert [row_numbers(batch) for batch in batches] == [[0, 1], [2, 3], [4]]
    assert batches[-1].tokens.shape == (2, 2)


@pytest.mark.parametrize("packed", [False, True])
def test_first_rows_are_those_of_the_files(tmp_path: Path, packed: bool) -> None:
    rows = [row(BOS, *[100 + n] * (1 + n % 5)) for n in range(40)]
    data = dataset(tmp_path, rows, packed=packed)
    first = data.first_rows(7)
    assert (first.num_examples, first.num_tokens) == (7, sum(len(r.ids) for r in rows[:7]))
    assert first.num_target_tokens == sum(int(r.target.sum()) for r in rows[:7])
    ids = {int(id) for batch in first.in_order(3) for id in batch.tokens.ravel()}
    assert ids - {0, BOS} == {100 + n for n in range(7)}
    assert (first.num_sequences < 7) == packed
    assert data.first_rows(40) is data.first_rows(99) is data


def test_first_rows_takes_all_pieces_of_a_split_row(tmp_path: Path) -> None:
    writer = SideWriter(tmp_path / "side")
    for pieces in ([row(BOS, 1), row(BOS, 1)], [row(BOS, 2)], [row(BOS, 3)]):
        writer.add_row(pieces)
    writer.finish(one_each(4))
    data = PackedDataset(read_arrays(tmp_path / "side"), 4)
    assert data.first_rows(2).num_examples == 3
