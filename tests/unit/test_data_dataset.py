"""Preparing a recipe's data as a whole. G numbers: known ways in which this goes wrong."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data_recipe import CHAT, TEXT, chat_row, contents, data_recipe, write_rows, write_texts
from tests.tiny import write_tiny_tokenizer
from tunesmith.data import build
from tunesmith.data.dataset import prepare
from tunesmith.data.stats import DataStats
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.errors import UserError
from tunesmith.recipe.schema import Holdout, Template

SEPARATOR = "<|endoftext|>"


# --- variants of one file -----------------------------------------------------------------------


def test_variants_of_a_text_file_train_the_same(
    tmp_path: Path, ready: Any, tokenizer: Tokenizer
) -> None:
    """G25, G26, G30: BOM, CRLF and gz change nothing."""
    stories = [f"story {n}\nof the cat\u2029 end" for n in range(20)]
    clean = "".join(f"{story}\n{SEPARATOR}\n" for story in stories).encode()
    variants = {
        "clean.txt": clean,
        "bom.txt": b"\xef\xbb\xbf" + clean,
        "crlf.txt": clean.replace(b"\n", b"\r\n"),
        "packed.txt.gz": gzip.compress(clean),
    }
    for name, content in variants.items():
        (tmp_path / name).write_bytes(content)
        data = ready(train={"files": [name], "format": "text", "separator": SEPARATOR})
        assert contents(data.train, tokenizer) == stories, name
        assert data.train_stats.rows_read == 20


def test_variants_of_real_stories(
    shared_data: Path, tmp_path: Path, ready: Any, tokenizer: Tokenizer
) -> None:
    """G25, G26, G30 on 113 stories; a bad byte stops, or spoils its own story alone."""
    clean = (shared_data / "tinystories-sample.txt").read_bytes()
    source = {"format": "text", "separator": SEPARATOR}
    (tmp_path / "clean.txt").write_bytes(clean)
    stories = contents(
        ready(train=source | {"files": ["clean.txt"]}, max_length=1024).train, tokenizer
    )
    assert len(stories) == 113
    assert stories[0].startswith("One day, a little girl named Lily found a needle in her room.")
    variants = {
        "bom.txt": b"\xef\xbb\xbf" + clean,
        "crlf.txt": clean.replace(b"\n", b"\r\n"),
        "packed.txt.gz": gzip.compress(clean),
    }
    for name, content in variants.items():
        (tmp_path / name).write_bytes(content)
        data = ready(train=source | {"files": [name]}, max_length=1024)
        assert contents(data.train, tokenizer) == stories, name
    (tmp_path / "odd.txt").write_bytes(clean.replace(b". ", b".\xe2\x80\xa9"))
    odd = contents(ready(train=source | {"files": ["odd.txt"]}, max_length=1024).train, tokenizer)
    assert [story.replace("\u2029", " ") for story in odd] == stories
    (tmp_path / "bad.txt").write_bytes(clean.replace(b"Beep", b"Be\xffp", 1))
    with pytest.raises(UserError, match=r"bad\.txt:7: byte 0xff at offset 765 is not UTF-8"):
        ready(train=source | {"files": ["bad.txt"]}, max_length=1024)
    rest = ready(train=source | {"files": ["bad.txt"]}, max_length=1024, bad_rows="skip")
    assert contents(rest.train, tokenizer) == stories[:1] + stories[2:]


def test_shuffled_copy_gives_the_same_examples(
    tmp_path: Path, ready: Any, tokenizer: Tokenizer
) -> None:
    """G28: nothing is inferred from the first rows."""
    texts = [f"row {n}" for n in range(50)]
    rows: list[dict[str, Any]] = [
        {"text": text, "extra": n if n > 40 else None} for n, text in enumerate(texts)
    ]
    write_rows(tmp_path / "a.jsonl", rows)
    write_rows(tmp_path / "b.jsonl", rows[::-1])
    plain = ready(train=TEXT)
    turned = ready(train={"files": ["b.jsonl"], "format": "text"})
    assert contents(plain.train, tokenizer) == texts
    assert contents(turned.train, tokenizer) == texts[::-1]


# --- evaluation rows ----------------------------------------------------------------------------


def test_evaluation_rows_keep_fields_and_prompts(
    tmp_path: Path, ready: Any, tokenizer: Tokenizer
) -> None:
    """The prompt is everything before the last answer, uncut, generation prompt included."""
    row = {"question": "Q", "sql": "A" * 100, "rows": [1, None, 2.5], "odd": "\ud800"}
    write_rows(tmp_path / "a.jsonl", [{"question": "x", "sql": "y"}])
    write_rows(tmp_path / "e.jsonl", [{"question": "z", "sql": "w"}, row])
    template = Template(user="{question}", assistant="{sql}")
    rows = {"format": "template", "template": template}
    data = ready(
        train={"files": ["a.jsonl"], **rows}, eval={"files": ["e.jsonl"], **rows}, long_rows="cut"
    )
    kept = list(data.eval_rows())
    assert [str(one.where) for one in kept] == ["e.jsonl:1", "e.jsonl:2"]
    assert kept[1].fields == row
    opened = "<bos><start_of_turn>user\nQ<end_of_turn>\n<start_of_turn>model\n"
    assert kept[1].prompt.tolist() == tokenizer.encode(opened)
    assert kept[1].prompt.dtype == np.int32
    assert len(list(data.eval_rows(limit=1))) == 1


def test_values_that_json_lacks_become_texts(tmp_path: Path, ready: Any) -> None:
    import datetime

    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": ["a"], "day": [datetime.date(2024, 2, 29)]})
    pq.write_table(table, tmp_path / "e.parquet")
    write_texts(tmp_path / "a.jsonl", ["b"])
    data = ready(train=TEXT, eval={"files": ["e.parquet"], "format": "text"})
    assert next(iter(data.eval_rows())).fields == {"text": "a", "day": "2024-02-29"}


def test_without_evaluation_there_are_no_rows(tmp_path: Path, ready: Any) -> None:
    write_texts(tmp_path / "a.jsonl", ["a"])
    data = ready(train=TEXT)
    assert data.eval is data.eval_stats is None
    assert list(data.eval_rows()) == []


# --- numbers ------------------------------------------------------------------------------------


def test_statistics(tmp_path: Path, ready: Any) -> None:
    rows = [{"prompt": "A" * 7, "completion": "B" * 3}] * 4 + [{"prompt": "C", "completion": "D"}]
    write_rows(tmp_path / "a.jsonl", rows)
    data = ready(train={"files": ["a.jsonl"], "format": "prompt_completion"}, max_length=32)
    stats = data.train_stats
    assert (stats.tokens, stats.target_tokens) == (4 * 12 + 4, 4 * 4 + 2)
    assert (stats.examples, stats.sequences, stats.padding_tokens) == (5, 2, 64 - 52)
    assert stats.duplicates == 3
    assert stats.padding_share == 12 / 64
    assert stats.target_share == 18 / 52
    assert stats.longest_row == 12
    assert DataStats.from_json(json.loads(json.dumps(stats.to_json()))) == stats
    assert data.train.num_target_tokens == stats.target_tokens
    assert stats.lines() == [
        "rows read: 5",
        "examples: 5 in 2 sequences, longest row 12 tokens, 3 repeated",
        "tokens: 52, of which targets 18 (34.6%); padding 18.8% of the sequences",
    ]
    assert data.warnings == [
        "train: 3 of 5 examples repeat an earlier one",
        "train: 2 sequences do not fill one batch of 4; lower `train.batch_size` or "
        "`data.max_length`, or add rows",
    ]


def test_warnings_of_thin_targets_and_padding(tmp_path: Path, ready: Any) -> None:
    write_rows(tmp_path / "a.jsonl", [{"prompt": "A" * 40, "completion": str(n)} for n in range(4)])
    (tmp_path / "README.md").write_text("x")
    source = {"files": ["*"], "format": "prompt_completion"}
    assert ready(train=source, packing=False, max_length=128).warnings == [
        "train: only 4.7% of the tokens are trained, the rest is prompt",
        "train: 66% of the sequences is padding; set `data.packing: true`",
        "1 files are no data files and were left aside: README.md",
    ]


# --- cache --------------------------------------------------------------------------------------


def test_second_time_reads_nothing_anew(
    tmp_path: Path, ready: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(tmp_path / "a.jsonl", [f"row {n}" for n in range(20)])
    first = ready(train=TEXT, holdout=Holdout(rows=4))

    def never(*args: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(build.Builder, "build", never)
    monkeypatch.setattr("hashlib.file_digest", never)
    second = ready(train=TEXT, holdout=Holdout(rows=4))
    assert second.fingerprint == first.fingerprint
    assert second.train_stats == first.train_stats
    assert second.warnings == first.warnings
    same = zip(first.train.in_order(4), second.train.in_order(4), strict=True)
    assert all((one.tokens == other.tokens).all() for one, other in same)


def test_fingerprint_follows_content_and_options_not_place(
    tmp_path: Path, ready: Any, tokenizer: Tokenizer
) -> None:
    write_texts(tmp_path / "a.jsonl", ["one", "two"])
    base = ready(train=TEXT).fingerprint
    (tmp_path / "sub").mkdir()
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "sub" / "b.jsonl")
    assert ready(train=TEXT | {"files": ["sub/b.jsonl"]}).fingerprint == base
    changes: list[dict[str, Any]] = [
        {"max_length": 32},
        {"packing": False},
        {"seed": 1},
        {"long_rows": "cut"},
        {"bad_rows": "skip"},
        {"train": TEXT | {"limit": 1}},
        {"holdout": Holdout(rows=1)},
        {"eval": TEXT},
    ]
    prints = [ready(**{"train": TEXT, **change}).fingerprint for change in changes]
    write_texts(tmp_path / "a.jsonl", ["one", "tvo"])
    prints.append(ready(train=TEXT).fingerprint)
    assert len({base, *prints}) == len(changes) + 2


def test_fingerprint_follows_the_chat_template(
    tmp_path: Path, ready: Any, tokenizer: Tokenizer
) -> None:
    write_rows(tmp_path / "a.jsonl", [chat_row(0)])
    first = ready(train=CHAT)
    assert first.template is not None
    (tmp_path / "own.jinja").write_text(first.template.source)
    assert ready(train=CHAT, chat_template="own.jinja").fingerprint == first.fingerprint
    (tmp_path / "own.jinja").write_text(first.template.source + "{# other #}")
    assert ready(train=CHAT, chat_template="own.jinja").fingerprint != first.fingerprint


def test_file_changed_within_its_size_is_seen(
    tmp_path: Path, ready: Any, tokenizer: Tokenizer
) -> None:
    write_texts(tmp_path / "a.jsonl", ["one"])
    ready(train=TEXT)
    write_texts(tmp_path / "a.jsonl", ["two"])
    assert contents(ready(train=TEXT).train, tokenizer) == ["two"]


def test_failed_build_leaves_nothing(tmp_path: Path, ready: Any) -> None:
    write_texts(tmp_path / "a.jsonl", ["x" * 100])
    with pytest.raises(UserError):
        ready(train=TEXT)
    assert list((tmp_path / "cache" / "data").iterdir()) == []


def test_damaged_cache_is_made_again(tmp_path: Path, ready: Any, tokenizer: Tokenizer) -> None:
    write_texts(tmp_path / "a.jsonl", ["one", "two"])
    first = ready(train=TEXT)
    tokens = first.directory / "train" / "tokens.bin"
    whole = tokens.read_bytes()
    tokens.unlink()  # the first run's map keeps the old file
    tokens.write_bytes(whole[:8])
    assert contents(ready(train=TEXT).train, tokenizer) == ["one", "two"]
    assert tokens.read_bytes() == whole


def test_another_process_that_was_faster_is_left_alone(
    tmp_path: Path, ready: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(tmp_path / "a.jsonl", ["one"])
    real = build.Builder.build

    def slow(self: build.Builder) -> None:
        monkeypatch.setattr(build.Builder, "build", real)
        self.other = ready(train=TEXT)  # type: ignore[attr-defined]
        marks.append(self.other.directory.stat().st_ino)  # type: ignore[attr-defined]
        real(self)

    marks: list[int] = []
    monkeypatch.setattr(build.Builder, "build", slow)
    data = ready(train=TEXT)
    assert data.directory.stat().st_ino == marks[0]
    assert [path.name for path in data.directory.parent.iterdir()] == [data.fingerprint]


def test_full_disk_says_where(tmp_path: Path, ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_texts(tmp_path / "a.jsonl", ["one"])
    monkeypatch.setattr(build.Builder, "build", full)
    with pytest.raises(UserError, match=r"cannot be written to .*/data: No space left") as told:
        ready(train=TEXT)
    assert "TUNESMITH_CACHE" in str(told.value)


def test_cache_place_comes_from_the_environment(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(tmp_path / "a.jsonl", ["one"])
    monkeypatch.setenv("TUNESMITH_CACHE", str(tmp_path / "own"))
    data = prepare(data_recipe(train=TEXT), tokenizer, base_dir=tmp_path)
    assert data.directory.parent == tmp_path / "own" / "data"


def test_progress_is_told(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(build, "_CHUNK_EXAMPLES", 10)
    write_texts(tmp_path / "a.jsonl", [f"row {n}" for n in range(25)])
    lines: list[str] = []
    prepare(
        data_recipe(train=TEXT),
        tokenizer,
        base_dir=tmp_path,
        cache_dir=tmp_path,
        progress=lines.append,
    )
    assert [line.partition(" for")[0] for line in lines] == [
        "tokenised 10 rows",
        "tokenised 20 rows",
    ]


def test_template_is_tried_before_files_are_read(tmp_path: Path, ready: Any) -> None:
    """G7: an unfit template is refused before anything heavy."""
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    with pytest.raises(UserError, match=r"the chat template cannot be trained with: own\.jinja"):
        ready(train=CHAT, chat_template="own.jinja")  # a.jsonl is not even there


@pytest.mark.heavy
def test_60_mb_row_stays_in_bounded_memory(tmp_path: Path, run_python: Any) -> None:
    """G27: loads and is tokenised whole; memory is a small multiple of the row."""
    (tmp_path / "a.jsonl").write_text('{"text": "' + "the cat sat " * 5_000_000 + '"}\n')
    write_tiny_tokenizer(tmp_path)
    code = f"""
import resource
from pathlib import Path
from tests.data_recipe import data_recipe
from tunesmith.data.dataset import prepare
from tunesmith.data.tokenizer import Tokenizer
folder = Path({str(tmp_path)!r})
recipe = data_recipe(train={TEXT!r}, long_rows="split")
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
stats = prepare(recipe, Tokenizer.load(folder), base_dir=folder, cache_dir=folder).train_stats
print(stats.rows_split, stats.target_tokens, peak() - before)
"""
    split, targets, kilobytes = map(int, run_python(code).split())
    assert split == 1
    assert targets > 15_000_000
    assert kilobytes < 20 * 60_000 * (1 if sys.platform == "linux" else 1024)
