"""Which rows are used, and what becomes of the others. G numbers: known ways to go wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.data_recipe import CHAT, TEXT, chat_row, contents, write_rows, write_texts
from tunesmith.data.stats import DataStats
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.errors import UserError
from tunesmith.recipe.schema import Holdout


def total(stats: DataStats) -> int:
    """The rows whose fate is counted, `used` left out."""
    return (
        stats.skipped_count
        + stats.rows_empty
        + stats.rows_not_picked
        + stats.rows_held_out
        + stats.rows_no_target
    )


# --- bad rows -----------------------------------------------------------------------------------


def test_bad_rows_stop_and_name_several_lines(tmp_path: Path, ready: Any) -> None:
    """G3: 40 rows, 10 with two user turns in a row."""
    write_rows(tmp_path / "a.jsonl", [chat_row(n, bad=n % 4 == 1) for n in range(40)])
    with pytest.raises(UserError) as told:
        ready(train=CHAT)
    for line in (2, 6, 10, 14, 18):
        assert f"a.jsonl:{line}: message 2 is the user's where the assistant's turn is due" in str(
            told.value
        )
    assert "data.bad_rows: skip" in str(told.value)
    assert told.value.exit_code == 2


def test_few_bad_rows_are_all_named_at_the_end(tmp_path: Path, ready: Any) -> None:
    write_rows(tmp_path / "a.jsonl", [chat_row(n, bad=n in (3, 30)) for n in range(40)])
    with pytest.raises(UserError, match=r"(?s)a\.jsonl:4: .*a\.jsonl:31: "):
        ready(train=CHAT)


def test_bad_rows_are_skipped_and_counted(tmp_path: Path, ready: Any) -> None:
    """G3: 30 trained and 10 counted."""
    write_rows(tmp_path / "a.jsonl", [chat_row(n, bad=n % 4 == 1) for n in range(40)])
    data = ready(train=CHAT, bad_rows="skip")
    stats = data.train_stats
    assert (stats.rows_read, stats.examples, stats.skipped_count) == (40, 30, 10)
    skipped = stats.rows_skipped["roles do not alternate"]
    assert skipped.count == 10
    assert [place.partition(": ")[0] for place in skipped.places] == [
        f"a.jsonl:{n}" for n in (2, 6, 10, 14, 18)
    ]
    assert "train: 10 of 40 rows were skipped" in data.warnings


def test_all_rows_bad_is_an_error(tmp_path: Path, ready: Any) -> None:
    """G3: never a run without rows."""
    write_rows(tmp_path / "a.jsonl", [chat_row(n, bad=True) for n in range(4)])
    with pytest.raises(
        UserError, match=r"(?s)no rows are left for train.*roles do not alternate: 4"
    ):
        ready(train=CHAT, bad_rows="skip")
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(UserError, match=r"no rows are left for train\n.*rows read: 0"):
        ready(train=CHAT)


def test_unreadable_and_unusable_rows_are_counted_together(tmp_path: Path, ready: Any) -> None:
    lines = [
        b'{"text": "a"}',
        b'{"text": "\xff"}',
        b'{"text": 3}',
        b'{"text": " "}',
        b"{",
        b'{"text": "b"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    stats = ready(train=TEXT, bad_rows="skip").train_stats
    assert stats.rows_read == 6 == stats.examples + total(stats)
    assert {kind: skipped.count for kind, skipped in stats.rows_skipped.items()} == {
        "not UTF-8": 1, "wrong type": 1, "not JSON": 1,
    }  # fmt: skip
    assert stats.rows_empty == 1


def test_token_across_an_edge_is_a_bad_row(tmp_path: Path, ready: Any) -> None:
    """G5: found only when the row is tokenised."""
    (tmp_path / "own.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}:{% else %}"
        "{{ m.content }}<end_of_turn>{% endif %}{% endfor %}"
    )
    turns = [("a\n", "b"), ("th", "\ne"), ("a\n", "c")]
    rows = [
        {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for q, a in turns
    ]
    template = (tmp_path / "own.jinja").read_text().replace(":", "\n")
    (tmp_path / "own.jinja").write_text(template)
    write_rows(tmp_path / "a.jsonl", rows)
    stats = ready(train=CHAT, bad_rows="skip", chat_template="own.jinja").train_stats
    assert stats.rows_skipped["token across an answer's edge"].count == 1
    assert (stats.rows_read, stats.examples) == (3, 2)
    with pytest.raises(UserError, match=r"a\.jsonl:2: a token lies across the edge"):
        ready(train=CHAT, chat_template="own.jinja")


# --- long rows ----------------------------------------------------------------------------------

LONG = ["A" * 10, "B" * 100, "C" * 20, "D" * 100]  # each letter is one token


def test_long_rows_stop_with_place_length_and_choices(tmp_path: Path, ready: Any) -> None:
    write_texts(tmp_path / "a.jsonl", LONG)
    with pytest.raises(UserError) as told:
        ready(train=TEXT)
    text = str(told.value)
    assert "a.jsonl:2: the row has 102 tokens, `data.max_length` is 64" in text
    assert "of the 4 rows at hand 2 are longer, up to 102" in text
    assert all(choice in text for choice in ("cut", "split", "skip"))


def test_long_rows_cut(tmp_path: Path, ready: Any) -> None:
    write_texts(tmp_path / "a.jsonl", LONG)
    data = ready(train=TEXT, long_rows="cut")
    stats = data.train_stats
    assert (stats.rows_truncated, stats.truncated_tokens, stats.longest_row) == (2, 76, 102)
    assert stats.examples == 4
    assert len(data.train.example(1).ids) == 64
    assert data.train.example(1).ids[-1] != 1
    assert (
        "train: 2 rows were cut: 76 tokens are lost, the ends of answers among them"
        in data.warnings
    )


def test_prompt_longer_than_the_limit_is_never_trained_on_nothing(
    tmp_path: Path, ready: Any
) -> None:
    """G6: counted and dropped; a batch without targets has a loss of 0 or NaN."""
    rows = [{"prompt": "A" * n, "completion": "B"} for n in (10, 63, 64, 200)]
    write_rows(tmp_path / "a.jsonl", rows)
    source = {"files": ["a.jsonl"], "format": "prompt_completion"}
    data = ready(train=source, long_rows="cut")
    stats = data.train_stats
    # BOS + 63 fills the sequence: nothing of the answer is left of the last three rows.
    assert (stats.rows_no_target, stats.rows_truncated, stats.examples) == (3, 0, 1)
    assert stats.rows_read == stats.examples + total(stats)
    assert any("3 rows were left out: no target is left" in warning for warning in data.warnings)
    write_rows(tmp_path / "a.jsonl", rows[2:])
    with pytest.raises(UserError, match=r"(?s)no rows are left for train.*2 without a target"):
        ready(train=source, long_rows="cut")


def test_long_rows_split_loses_no_token(tmp_path: Path, ready: Any) -> None:
    write_texts(tmp_path / "a.jsonl", LONG)
    data = ready(train=TEXT, long_rows="split")
    stats = data.train_stats
    assert (stats.rows_split, stats.examples) == (2, 6)
    assert stats.target_tokens == sum(len(text) + 1 for text in LONG)


def test_long_rows_skip(tmp_path: Path, ready: Any) -> None:
    write_texts(tmp_path / "a.jsonl", LONG)
    stats = ready(train=TEXT, long_rows="skip").train_stats
    assert stats.rows_skipped["longer than max_length"].count == 2
    assert stats.rows_skipped["longer than max_length"].places[0] == "a.jsonl:2: has 102 tokens"
    assert stats.rows_read == stats.examples + total(stats) == 4


def test_split_stops_at_answers_of_evaluation_rows(tmp_path: Path, ready: Any) -> None:
    write_texts(tmp_path / "a.jsonl", LONG)
    write_rows(tmp_path / "e.jsonl", [{"prompt": "A" * 100, "completion": "B"}])
    evaluation = {"files": ["e.jsonl"], "format": "prompt_completion"}
    with pytest.raises(UserError, match=r"e\.jsonl:1: the row has 103 tokens"):
        ready(train=TEXT, eval=evaluation, long_rows="split")


# --- which rows ---------------------------------------------------------------------------------


def test_limit_takes_the_first_usable_rows(
    tmp_path: Path, ready: Any, tokenizer: Tokenizer
) -> None:
    texts = ["one", " ", "two", "three", "four"]
    write_texts(tmp_path / "a.jsonl", texts)
    data = ready(train=TEXT | {"limit": 3})
    assert contents(data.train, tokenizer) == ["one", "two", "three"]
    assert (data.train_stats.rows_read, data.train_stats.rows_empty) == (4, 1)


def test_limit_by_random_pick_is_seeded_and_exact(
    tmp_path: Path, ready: Any, tokenizer: Tokenizer
) -> None:
    write_texts(tmp_path / "a.jsonl", [f"row {n}" for n in range(100)])
    picked = [
        contents(ready(train=TEXT | {"limit": 10, "pick": "random"}, seed=seed).train, tokenizer)
        for seed in (0, 0, 1)
    ]
    assert picked[0] == picked[1] != picked[2]
    assert len(set(picked[0])) == 10
    stats = ready(train=TEXT | {"limit": 10, "pick": "random"}).train_stats
    assert (stats.rows_read, stats.rows_not_picked, stats.examples) == (100, 90, 10)


@pytest.mark.parametrize(("holdout", "count"), [(Holdout(rows=7), 7), (Holdout(fraction=0.1), 5)])
def test_holdout_is_exact_disjoint_and_made_once(
    tmp_path: Path, ready: Any, tokenizer: Tokenizer, holdout: Holdout, count: int
) -> None:
    texts = [f"row {n}" for n in range(50)]
    write_texts(tmp_path / "a.jsonl", texts)
    data = ready(train=TEXT, holdout=holdout)
    assert data.eval is not None
    train, held = contents(data.train, tokenizer), contents(data.eval, tokenizer)
    assert len(held) == count
    assert sorted(train + held) == sorted(texts)
    assert data.train_stats.rows_held_out == data.eval_stats.rows_read == count
    assert data.train_stats.rows_read == data.train_stats.examples + total(data.train_stats) == 50
    shutil.rmtree(tmp_path / "cache")  # another host makes its own
    assert contents(ready(train=TEXT, holdout=holdout).eval, tokenizer) == held
    assert contents(ready(train=TEXT, holdout=holdout, seed=1).eval, tokenizer) != held
    assert [row.fields["text"] for row in data.eval_rows()] == held


def test_holdout_with_random_pick(tmp_path: Path, ready: Any) -> None:
    """The GPU tutorial: so many rows at random, so many of them held out."""
    write_texts(tmp_path / "a.jsonl", [f"row {n}" for n in range(100)])
    data = ready(train=TEXT | {"limit": 50, "pick": "random"}, holdout=Holdout(rows=10))
    assert (data.train.num_examples, data.eval.num_examples) == (40, 10)
    assert data.train_stats.rows_not_picked == 50


def test_holdout_larger_than_the_data(tmp_path: Path, ready: Any) -> None:
    write_texts(tmp_path / "a.jsonl", ["a", "b"])
    with pytest.raises(UserError, match=r"`data.holdout` takes 2 rows, but there are only 2"):
        ready(train=TEXT, holdout=Holdout(rows=2))


def test_rows_on_both_sides_are_counted_as_leaked(tmp_path: Path, ready: Any) -> None:
    write_texts(tmp_path / "a.jsonl", [f"row {n}" for n in range(20)])
    write_texts(tmp_path / "e.jsonl", ["row 3", "new", "row 5"])
    evaluation = {"files": ["e.jsonl"], "format": "text"}
    warnings = ready(train=TEXT, eval=evaluation).warnings
    assert warnings[0].startswith("2 of 3 evaluation examples are also training examples")
    write_texts(tmp_path / "a.jsonl", ["same"] * 20)
    assert ready(train=TEXT, holdout=Holdout(rows=4)).warnings[0].startswith("4 of 4 evaluation")
