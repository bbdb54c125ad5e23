"""Reading files of each kind, whole and broken. G numbers: known ways in which this goes wrong."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data_recipe import rows_of
from tunesmith.data import files, readers
from tunesmith.data.readers import Stream, split
from tunesmith.errors import UserError

BOM = b"\xef\xbb\xbf"
SEPARATOR = "<|endoftext|>"


def texts(folder: Path, file: str, **options: Any) -> list[str]:
    rows, bad = rows_of(folder, file, **options)
    assert bad == []
    return [row.fields["text"] for row in rows]


def write(folder: Path, name: str, content: bytes | str) -> str:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


# --- text ---------------------------------------------------------------------------------------


def test_text_documents_equal_separators(tmp_path: Path) -> None:
    """G26: U+2029, U+0085, form feed and lone CR are text; documents = separators."""
    stories = ["One\u2029two", "three\x85four", "five\x0csix\rseven", "eight\u2028"]
    name = write(tmp_path, "a.txt", "".join(f"{story}\n{SEPARATOR}\n" for story in stories))
    assert texts(tmp_path, name, separator=SEPARATOR) == stories


def test_text_without_a_last_separator_keeps_the_last_document(tmp_path: Path) -> None:
    name = write(tmp_path, "a.txt", f"one{SEPARATOR}two")
    assert texts(tmp_path, name, separator=SEPARATOR) == ["one", "two"]


def test_separator_is_found_inside_a_line(tmp_path: Path) -> None:
    name = write(tmp_path, "a.txt", f"one {SEPARATOR} two {SEPARATOR}")
    assert texts(tmp_path, name, separator=SEPARATOR) == ["one ", " two "]


def test_empty_documents_are_told_apart_from_the_end_of_the_file(tmp_path: Path) -> None:
    """An empty document is a row (counted as empty later); blank space at the end is none."""
    name = write(tmp_path, "a.txt", f"one{SEPARATOR}\n{SEPARATOR}two{SEPARATOR}\n \n")
    assert texts(tmp_path, name, separator=SEPARATOR) == ["one", "", "two"]


def test_crlf_file_equals_lf_file(tmp_path: Path) -> None:
    """G26, with a separator that itself holds a line end."""
    write(tmp_path, "lf.txt", "one\ntwo\n\nthree\n\nfour\n")
    write(tmp_path, "crlf.txt", "one\r\ntwo\r\n\r\nthree\r\n\r\nfour\r\n")
    expected = ["one\ntwo", "three", "four"]
    for name in ("lf.txt", "crlf.txt"):
        assert texts(tmp_path, name, separator="\n\n") == expected
        assert texts(tmp_path, name, separator="\r\n\r\n") == expected


def test_bom_file_equals_clean_file(tmp_path: Path) -> None:
    """G25: for every kind of text file."""
    contents = {
        "txt": f"one{SEPARATOR}two",
        "jsonl": '{"text": "one"}\n{"text": "two"}',
        "json": '[{"text": "one"}, {"text": "two"}]',
        "csv": "text\none\ntwo\n",
    }
    for kind, content in contents.items():
        write(tmp_path, f"clean.{kind}", content)
        write(tmp_path, f"bom.{kind}", BOM + content.encode())
        for name in (f"clean.{kind}", f"bom.{kind}"):
            assert texts(tmp_path, name, separator=SEPARATOR) == ["one", "two"], name


def test_bom_alone_is_an_empty_file(tmp_path: Path) -> None:
    for kind in ("txt", "jsonl", "json", "csv"):
        assert texts(tmp_path, write(tmp_path, f"a.{kind}", BOM)) == []
        assert texts(tmp_path, write(tmp_path, f"b.{kind}", b"")) == []


def test_utf16_is_named(tmp_path: Path) -> None:
    name = write(tmp_path, "a.txt", "text".encode("utf-16"))
    with pytest.raises(UserError, match=r"a\.txt: is UTF-16"):
        rows_of(tmp_path, name)


def test_file_without_separator_is_one_document(tmp_path: Path) -> None:
    assert texts(tmp_path, write(tmp_path, "a.txt", "\none\n\ntwo\n")) == ["one\n\ntwo"]


@pytest.mark.parametrize("mark", [b"", BOM])
def test_bad_byte_in_text_names_line_and_offset_and_spoils_its_document_only(
    tmp_path: Path, mark: bytes
) -> None:
    """G25: a bad byte on line 7; the offset counts from the file's first byte, BOM included."""
    good = f"a\nb\n{SEPARATOR}\nc\nd\n".encode()
    name = write(tmp_path, "a.txt", mark + good + b"e\nf\xffg\n" + f"{SEPARATOR}\nh".encode())
    rows, bad = rows_of(tmp_path, name, separator=SEPARATOR)
    assert [row.fields["text"] for row in rows] == ["a\nb", "h"]
    offset = len(mark + good) + 3
    assert [str(one) for one in bad] == [f"a.txt:7: byte 0xff at offset {offset} is not UTF-8"]
    assert bad[0].kind == "not UTF-8"


def test_rows_know_their_lines(tmp_path: Path) -> None:
    name = write(tmp_path, "a.txt", f"one\nmore\n{SEPARATOR}\n\ntwo\n{SEPARATOR}\nthree")
    rows, _ = rows_of(tmp_path, name, separator=SEPARATOR)
    assert [str(row.where) for row in rows] == ["a.txt:1", "a.txt:5", "a.txt:7"]


@given(
    st.lists(st.text("ab\r\n|\u2029é", max_size=8), min_size=1, max_size=6),
    st.sampled_from(["|", "||", "\n", "\n\n", "|\n|", "é"]),
    st.integers(1, 7),
)
def test_splitting_does_not_depend_on_the_chunks(parts: list[str], mark: str, size: int) -> None:
    """A stream cut anywhere gives the pieces that the whole gives."""
    content = mark.join(parts).encode()
    pattern = re.compile(re.escape(mark.encode()))

    def pieces(chunk_size: int) -> list[tuple[bytes, int, int]]:
        chunks = iter([content[at : at + chunk_size] for at in range(0, len(content), chunk_size)])
        found = split(Stream("x", chunks, 0), pattern, len(mark.encode()))
        return [(piece.data, piece.line, piece.offset) for piece in found]

    whole = pieces(len(content) + 1)
    assert pieces(size) == whole
    expected = content.split(mark.encode())
    assert [data for data, _, _ in whole] == (expected if expected[-1] else expected[:-1])
    for data, line, offset in whole:
        assert content[offset : offset + len(data)] == data
        assert line == 1 + content[:offset].count(b"\n")


# --- JSON ---------------------------------------------------------------------------------------


def test_jsonl_rows_split_on_lf_alone(tmp_path: Path) -> None:
    """G26: U+2028, U+2029 and U+0085 stand unescaped in JSON texts."""
    values = ["a\u2028b", "c\u2029d", "e\x85f", "g\x0ch"]
    content = "".join(json.dumps({"text": value}, ensure_ascii=False) + "\n" for value in values)
    assert texts(tmp_path, write(tmp_path, "a.jsonl", content)) == values


def test_jsonl_crlf_and_blank_lines(tmp_path: Path) -> None:
    name = write(tmp_path, "a.jsonl", '{"text": "a"}\r\n\r\n{"text": "b\\r\\n"}\r\n  \n')
    rows, bad = rows_of(tmp_path, name)
    assert [(row.fields["text"], row.where.line) for row in rows] == [("a", 1), ("b\r\n", 3)]
    assert bad == []


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_json_list_is_read_under_either_name(tmp_path: Path, suffix: str) -> None:
    """G29: a JSON array in a .jsonl."""
    content = '\n[\n {"text": "a, [b] {c} \\"d\\\\"},\n {"text": "e", "more": {"x": [1, {}]}}\n]\n'
    rows, bad = rows_of(tmp_path, write(tmp_path, f"a.{suffix}", content))
    assert [row.fields["text"] for row in rows] == ['a, [b] {c} "d\\', "e"]
    assert [row.where.line for row in rows] == [3, 4]
    assert rows[1].fields["more"] == {"x": [1, {}]}
    assert bad == []


def test_json_file_with_an_object_a_line(tmp_path: Path) -> None:
    assert texts(tmp_path, write(tmp_path, "a.json", '{"text": "a"}\n{"text": "b"}\n')) == [
        "a",
        "b",
    ]


def test_two_objects_on_a_line_are_counted_in_the_message(tmp_path: Path) -> None:
    """G29."""
    name = write(tmp_path, "a.jsonl", '{"text": "a"}{"text": "b"}\n{"text": "c"}\n')
    rows, bad = rows_of(tmp_path, name)
    assert [str(one) for one in bad] == ["a.jsonl:1: the line holds 2 objects"]
    assert [row.fields["text"] for row in rows] == ["c"]


def test_mixed_list_names_what_is_no_object(tmp_path: Path) -> None:
    """G29."""
    name = write(tmp_path, "a.json", '[{"text": "a"}, "b", 3, null, ["c"], {"text": "d"}]')
    rows, bad = rows_of(tmp_path, name)
    assert [row.fields["text"] for row in rows] == ["a", "d"]
    held = ["text ('b')", "a number (3)", "null", "a list"]
    assert [one.detail for one in bad] == [f"holds {x}, not an object with fields" for x in held]


def test_empty_list_has_no_rows_and_a_trailing_comma_is_bad(tmp_path: Path) -> None:
    assert rows_of(tmp_path, write(tmp_path, "a.json", " [ ] ")) == ([], [])
    rows, bad = rows_of(tmp_path, write(tmp_path, "b.json", '[{"text": "a"},]'))
    assert len(rows) == 1
    assert [one.kind for one in bad] == ["not JSON"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"}, {"text": "b"}', "not closed; it ends after row 1"),
        ('[{"text": "a"}, {"text": "b', "not closed; it ends after row 1"),
        ('[{"text": "a"}]\n[{"text": "b"}]', r"a\.json:1: more follows the JSON list"),
        ("[", "not closed; it ends after row 0"),
        ('{\n  "text": "a"\n}', r"a\.json:1: one object over several lines"),
    ],
)
def test_broken_list_is_never_taken_in_part(tmp_path: Path, content: str, message: str) -> None:
    """What is lost cannot be counted, so skipping bad rows does not cover it."""
    with pytest.raises(UserError, match=message):
        rows_of(tmp_path, write(tmp_path, "a.json", content))


@pytest.mark.parametrize(
    ("line", "kind", "detail"),
    [
        (b'{"text": "a"', "not JSON", "not JSON: Expecting ',' delimiter (column 13)"),
        (b"text", "not JSON", "not JSON: Expecting value (column 1)"),
        (b'{"text": "\xe4"}', "not UTF-8", "byte 0xe4 at offset 26 is not UTF-8"),
        (b'{"text": "a", "text": "b"}', "duplicate key", "names 'text' twice"),
        (b'{"x": {"k": 1, "k": 1}}', "duplicate key", "names 'k' twice"),
        (b'"text"', "not an object", "holds text ('text'), not an object with fields"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON", "cannot be parsed: "),
        (b'{"x": ' + b"1" * 5000 + b"}", "not JSON", "cannot be parsed: "),
    ],
)
def test_bad_line_spoils_itself_alone(tmp_path: Path, line: bytes, kind: str, detail: str) -> None:
    """A key given twice would lose one of its values in silence."""
    name = write(tmp_path, "a.jsonl", b'{"text": "ok"}\n' + b" " + line + b'\n{"text": "on"}')
    rows, bad = rows_of(tmp_path, name)
    assert [row.fields["text"] for row in rows] == ["ok", "on"]
    assert [(one.kind, one.where.line) for one in bad] == [(kind, 2)]
    assert (
        bad[0]
        .detail.replace("(column 14)", "(column 13)")
        .replace("(column 2)", "(column 1)")
        .startswith(detail)
    )


def test_bad_element_spoils_itself_alone_and_names_its_line(tmp_path: Path) -> None:
    name = write(
        tmp_path, "a.json", b'[{"text": "a"},\n{"text"\n 1},\n{"text": "\xff"}, {"text": "b"}]'
    )
    rows, bad = rows_of(tmp_path, name)
    assert [row.fields["text"] for row in rows] == ["a", "b"]
    assert [(one.kind, one.where.line) for one in bad] == [("not JSON", 3), ("not UTF-8", 4)]


def test_nan_passes_as_a_number(tmp_path: Path) -> None:
    """Tables hold NaN in fields that nobody reads; where text belongs it is refused later."""
    rows, bad = rows_of(tmp_path, write(tmp_path, "a.jsonl", '{"text": "a", "score": NaN}'))
    assert bad == []
    assert rows[0].fields["score"] != rows[0].fields["score"]


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.text('ab"\\[]{},', max_size=6), max_size=3))
)
def test_json_list_of_anything_is_read_as_json_does(rows: list[dict[str, str]]) -> None:
    content = json.dumps(rows).encode()
    for size in (1, 3, len(content)):
        chunks = iter([content[at : at + size] for at in range(0, len(content), size)])
        pieces = readers._ListCutter(Stream("x", chunks, 0)).pieces()
        assert [json.loads(piece.data) for piece in pieces] == rows


@pytest.mark.parametrize("as_list", [False, True])
def test_line_of_60_mb_loads(tmp_path: Path, as_list: bool) -> None:
    """G27."""
    text = ("word \\n " * 8_000_000)[:60_000_000].rstrip("\\")
    line = '{"text": "' + text + '"}'
    content = f'[{line}, {line[:12]}"}}]' if as_list else f'{line}\n{line[:12]}"}}\n'
    rows, bad = rows_of(tmp_path, write(tmp_path, "a.jsonl", content))
    assert bad == []
    assert [len(row.fields["text"]) for row in rows] == [len(text.replace("\\n", "n")), 2]


def test_row_above_the_limit_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G27: plainly, naming the line, before memory is full."""
    monkeypatch.setattr(readers, "MAX_ROW_BYTES", 1 << 20)
    monkeypatch.setattr(files, "CHUNK_BYTES", 1 << 16)
    big = b"x" * ((1 << 20) + (1 << 17))
    for name, content in {
        "a.jsonl": b'{"text": "a"}\n{"text": "' + big + b'"}',
        "a.json": b'[\n{"text": "a"}, {"text": "' + big + b'"}]',
        "a.csv": b"text\n" + big,
        "a.txt": b"a\n" + SEPARATOR.encode() + b"\n" + big,
    }.items():
        write(tmp_path, name, content)
        with pytest.raises(UserError, match=rf"{name}:2: the row .* longer than 1 MiB"):
            rows_of(tmp_path, name, separator=SEPARATOR)


# --- CSV ----------------------------------------------------------------------------------------


def test_csv_with_quotes_newlines_and_unicode_line_ends(tmp_path: Path) -> None:
    content = 'text,answer\r\n"a ""b"", c","d\ne"\r\nf\u2028g,h\r\n\r\n,\r\n'
    rows, bad = rows_of(tmp_path, write(tmp_path, "a.csv", content))
    assert [row.fields for row in rows] == [
        {"text": 'a "b", c', "answer": "d\ne"},
        {"text": "f\u2028g", "answer": "h"},
        {"text": "", "answer": ""},
    ]
    assert [row.where.line for row in rows] == [2, 4, 6]
    assert bad == []


def test_csv_row_with_other_columns_is_bad(tmp_path: Path) -> None:
    name = write(tmp_path, "a.csv", "text,answer\na\nb,c,d\ne,f\n")
    rows, bad = rows_of(tmp_path, name)
    assert [row.fields["text"] for row in rows] == ["e"]
    assert [str(one) for one in bad] == [
        "a.csv:2: has 1 values, the header names 2",
        "a.csv:3: has 3 values, the header names 2",
    ]


def test_csv_bad_byte_spoils_its_row_alone(tmp_path: Path) -> None:
    """G25; within a quoted field of several lines, so the row's other lines must go with it."""
    name = write(tmp_path, "a.csv", b'text\nok\n"one\n\xff\ntwo"\non\n')
    rows, bad = rows_of(tmp_path, name)
    assert [row.fields["text"] for row in rows] == ["ok", "on"]
    assert [str(one) for one in bad] == ["a.csv:4: byte 0xff at offset 13 is not UTF-8"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text\n"a\nb\n', r"a\.csv:2: not CSV: unexpected end of data"),
        ("text,id,text\n", r"a\.csv:1: the header names 'text' twice"),
        (b"te\xffxt\n", r"a\.csv:1: byte 0xff at offset 2 is not UTF-8"),
    ],
)
def test_csv_that_cannot_be_read_at_all(tmp_path: Path, content: bytes | str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        rows_of(tmp_path, write(tmp_path, "a.csv", content))


def test_csv_stray_quote_is_bad(tmp_path: Path) -> None:
    rows, bad = rows_of(tmp_path, write(tmp_path, "a.csv", 'text\n"a"b\nc\n'))
    assert [row.fields["text"] for row in rows] == ["c"]
    assert [(one.kind, one.where.line) for one in bad] == [("not CSV", 2)]


def test_csv_field_longer_than_the_modules_own_limit(tmp_path: Path) -> None:
    assert texts(tmp_path, write(tmp_path, "a.csv", "text\n" + "x" * 200_000)) == ["x" * 200_000]


# --- Parquet ------------------------------------------------------------------------------------


def test_parquet_over_several_row_groups(tmp_path: Path) -> None:
    table = pa.table(
        {"text": [str(n) for n in range(1000)], "messages": [[{"role": "user"}]] * 1000}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    (tmp_path / "b.parquet.gz").write_bytes(gzip.compress((tmp_path / "a.parquet").read_bytes()))
    for name in ("a.parquet", "b.parquet.gz"):
        rows, bad = rows_of(tmp_path, name)
        assert [row.fields["text"] for row in rows] == [str(n) for n in range(1000)]
        assert rows[999].fields["messages"] == [{"role": "user"}]
        assert str(rows[999].where) == f"{name}:1000"
        assert bad == []


def test_parquet_bad_byte_spoils_its_row_alone(tmp_path: Path) -> None:
    """G25: writers do not check that strings are UTF-8."""
    broken = pa.array([b"ok", b"\xff", b"on"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "a.parquet")
    rows, bad = rows_of(tmp_path, "a.parquet")
    assert [row.fields["text"] for row in rows] == ["ok", "on"]
    assert [(one.kind, one.where.line) for one in bad] == [("not UTF-8", 2)]


def test_parquet_cut_short_says_so(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"] * 1000}), tmp_path / "a.parquet")
    write(tmp_path, "a.parquet", (tmp_path / "a.parquet").read_bytes()[:-20])
    with pytest.raises(
        UserError, match=r"a\.parquet: no Parquet file, or damaged; it ends after row 0"
    ):
        rows_of(tmp_path, "a.parquet")


def test_empty_parquet_has_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    assert rows_of(tmp_path, "a.parquet") == ([], [])


# --- gz -----------------------------------------------------------------------------------------


def test_gz_of_every_kind(tmp_path: Path) -> None:
    """G30; two members, as `cat a.gz b.gz` makes them, are one file."""
    contents = {
        "txt": f"one{SEPARATOR}two",
        "jsonl": '{"text": "one"}\n{"text": "two"}',
        "json": '[{"text": "one"}, {"text": "two"}]',
        "csv": "text\none\ntwo\n",
    }
    for kind, content in contents.items():
        half = len(content) // 2
        packed = gzip.compress(content[:half].encode()) + gzip.compress(content[half:].encode())
        name = write(tmp_path, f"a.{kind}.gz", packed)
        assert texts(tmp_path, name, separator=SEPARATOR) == ["one", "two"], kind


@pytest.mark.parametrize("kind", ["jsonl", "txt", "csv"])
def test_cut_gz_ends_after_row(tmp_path: Path, kind: str) -> None:
    """G30: whole rows before the cut are read, then it stops, whatever `bad_rows` says."""
    lines = {"jsonl": '{{"text": "{}"}}\n', "txt": "{}" + SEPARATOR, "csv": "{}\n"}[kind]
    content = "text\n" * (kind == "csv") + "".join(lines.format(n) for n in range(5000))
    packed = gzip.compress(content.encode())
    name = write(tmp_path, f"a.{kind}.gz", packed[: len(packed) // 2])
    with pytest.raises(
        UserError, match=r"is cut short or damaged; it ends after row [1-9]\d+"
    ) as told:
        rows_of(tmp_path, name, separator=SEPARATOR)
    assert told.value.exit_code == 2


def test_damaged_gz(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b'{"text": "a"}\n' * 100))
    packed[-6] ^= 1  # its checksum
    for content in (bytes(packed), b'{"text": "a"}\n'):
        with pytest.raises(UserError, match="cut short or damaged"):
            rows_of(tmp_path, write(tmp_path, "a.jsonl.gz", content))
