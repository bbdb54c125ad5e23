"""Readers of the file kinds. Each yields rows and tells `on_bad` of those it cannot read.

Text kinds are cut into documents, lines or list elements as bytes, and those are decoded one by
one, strictly. In UTF-8 no separator can be found inside another character, so this is safe, a bad
byte spoils its own row alone, and its offset in the (unpacked) file is known.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tunesmith.data.bad_rows import BadRow, OnBad, described
from tunesmith.data.files import DataFile
from tunesmith.data.types import Row, Where
from tunesmith.errors import UserError

MAX_ROW_BYTES = 1 << 28
_NEWLINE = re.compile(rb"\n")
_NEVER = re.compile(rb"(?!)")
# A whole JSON string, a structural character, or the quote of a string not yet read to its end.
_JSON_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{},]|"', re.DOTALL)
_PARQUET_ROWS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes between two separators.

    Attributes:
        data: the bytes, without the separators.
        line: line of the first byte, from 1.
        offset: place of the first byte in the unpacked file.
        ended: whether a separator follows, rather than the end of the file.
    """

    data: bytes
    line: int
    offset: int
    ended: bool = True


@dataclass(slots=True)
class Stream:
    """A text file from front to back.

    Attributes:
        name: for messages.
        chunks: its bytes without the byte order mark.
        offset: length of the byte order mark.
    """

    name: str
    chunks: Iterator[bytes]
    offset: int

    @classmethod
    def of(cls, file: DataFile) -> Stream:
        """Opens a file; UTF-16 is refused by its mark."""
        chunks = file.chunks()
        start = b""
        while len(start) < len(codecs.BOM_UTF8) and (chunk := next(chunks, b"")):
            start += chunk
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UserError(f"{file.name}: is UTF-16", "Save it as UTF-8.")
        text = start.removeprefix(codecs.BOM_UTF8)
        return cls(file.name, itertools.chain([text], chunks), len(start) - len(text))

    def starts_list(self) -> bool:
        """Whether the first character that is not blank opens a JSON list."""
        seen = []
        for chunk in self.chunks:
            seen.append(chunk)
            if text := chunk.lstrip():
                self.chunks = itertools.chain(seen, self.chunks)
                return text.startswith(b"[")
        self.chunks = iter(seen)
        return False


def read_text(file: DataFile, on_bad: OnBad, *, separator: str | None, field: str) -> Iterator[Row]:
    """Documents of a .txt file, each as the one field `field`.

    CRLF counts as LF everywhere, in the separator too; no other character ends a line. Line ends
    at both edges of a document belong to the separator. White space after the last separator is
    no document.
    """
    pattern, reach = _NEVER, 0
    if separator is not None:
        mark = separator.replace("\r\n", "\n").encode()
        pattern = re.compile(re.escape(mark).replace(b"\\\n", rb"\r?\n"))
        reach = len(mark) + mark.count(b"\n")
    for piece in split(Stream.of(file), pattern, reach):
        try:
            text = _decoded(piece, file.name).replace("\r\n", "\n")
        except BadRow as bad:
            on_bad(bad)
            continue
        if piece.ended or text.strip():
            edge = len(text) - len(text.lstrip("\n"))
            yield Row({field: text.strip("\n")}, Where(file.name, piece.line + edge))


def read_json(file: DataFile, on_bad: OnBad) -> Iterator[Row]:
    """Objects one a line, lines ended by LF alone, or one JSON list of objects.

    Both are found under .json and under .jsonl, so the content tells, not the name.
    """
    stream = Stream.of(file)
    pieces = _ListCutter(stream).pieces() if stream.starts_list() else _lines(stream)
    for number, piece in enumerate(pieces):
        try:
            yield Row(_object(piece, file.name), Where(file.name, piece.line))
        except BadRow as bad:
            if number == 0 and piece.data.strip() == b"{":
                raise UserError(
                    f"{bad.where}: one object over several lines is not a list of rows",
                    "Write the rows as one JSON list, or one object on each line.",
                ) from bad
            on_bad(bad)


def read_csv(file: DataFile, on_bad: OnBad) -> Iterator[Row]:
    """Rows of a comma-separated file with a header, quoted as in RFC 4180; all values are text."""
    csv.field_size_limit(MAX_ROW_BYTES)
    undecodable: list[BadRow] = []
    reader = csv.reader(_csv_lines(Stream.of(file), undecodable), strict=True)
    header: list[str] = []
    while True:
        where = Where(file.name, reader.line_num + 1)
        try:
            values = next(reader, None)
        except csv.Error as error:
            # How many rows an open quote has swallowed is unknown, so that is never skipped.
            if not header or "unexpected end" in str(error):
                raise UserError(f"{where}: not CSV: {error}", "Is a quote never closed?") from error
            on_bad(BadRow(where, "not CSV", f"not CSV: {error}"))
            undecodable.clear()
            continue
        if values is None:
            return
        if not header:
            header = _csv_header(values, where, undecodable)
        elif undecodable:
            on_bad(undecodable[0])
        elif values and len(values) != len(header):
            detail = f"has {len(values)} values, the header names {len(header)}"
            on_bad(BadRow(where, "wrong number of columns", detail))
        elif values:
            yield Row(dict(zip(header, values, strict=True)), where)
        undecodable.clear()


def read_parquet(file: DataFile, on_bad: OnBad) -> Iterator[Row]:
    """Rows of a Parquet file; `Where.line` is the row's number, from 1."""
    import pyarrow
    import pyarrow.parquet

    with file.seekable() as raw:
        number = 0
        try:
            table = pyarrow.parquet.ParquetFile(raw)
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS_AT_ONCE):
                for fields in _parquet_rows(batch):
                    number += 1
                    where = Where(file.name, number)
                    if isinstance(fields, UnicodeDecodeError):
                        on_bad(
                            BadRow(
                                where, "not UTF-8", f"holds text that is not UTF-8: {fields.reason}"
                            )
                        )
                    else:
                        yield Row(fields, where)
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(
                f"{file.name}: no Parquet file, or damaged; it ends after row {number}: {error}",
                "Fetch or write the file again.",
            ) from error


def split(stream: Stream, separator: re.Pattern[bytes], reach: int) -> Iterator[Piece]:
    """Cuts a stream at each match of `separator`; what follows the last comes too, unless empty.

    Args:
        stream: what to cut.
        separator: never matches the empty string.
        reach: length of its longest match.

    Raises:
        UserError: a piece is longer than MAX_ROW_BYTES.
    """
    buffer = bytearray()
    line, offset, searched = 1, stream.offset, 0
    for chunk in stream.chunks:
        buffer += chunk
        start = 0
        for match in separator.finditer(buffer, searched):
            yield Piece(bytes(buffer[start : match.start()]), line, offset + start)
            line += buffer.count(b"\n", start, match.end())
            start = match.end()
        del buffer[:start]
        offset += start
        searched = max(0, len(buffer) - reach)
        _check_length(len(buffer), stream.name, line)
    if buffer:
        yield Piece(bytes(buffer), line, offset, ended=False)


def _lines(stream: Stream) -> Iterator[Piece]:
    """Lines that are not blank."""
    return (piece for piece in split(stream, _NEWLINE, 1) if piece.data.strip())


class _ListCutter:
    """Cuts a JSON list into its elements, by brackets and quotes alone.

    What is wrong inside an element shows when that one is parsed.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._line, self._offset = 1, stream.offset  # of the buffer's first byte
        self._start = self._at = 0  # of the element, of the scan; in the buffer
        self._depth = self._count = 0

    def pieces(self) -> Iterator[Piece]:
        """The elements.

        Raises:
            UserError: the list does not end, something follows it, or an element is longer than
                MAX_ROW_BYTES.
        """
        wanted = 0
        for chunk in self._stream.chunks:
            self._buffer += chunk
            # A long string is scanned again only once it has doubled.
            if len(self._buffer) < min(wanted, MAX_ROW_BYTES):
                continue
            yield from self._scan()
            if self._closed:
                break
            del self._buffer[: self._start]
            self._offset += self._start
            self._start, self._at = 0, self._at - self._start
            _check_length(len(self._buffer), self._stream.name, self._line)
            wanted = 2 * len(self._buffer)
        else:
            yield from self._scan()
        self._check_end()

    @property
    def _closed(self) -> bool:
        return self._depth == 0 and self._at > 0

    def _scan(self) -> Iterator[Piece]:
        """Elements that end in the buffer."""
        for token in _JSON_TOKEN.finditer(self._buffer, self._at):
            mark = self._buffer[token.start()]
            if mark == ord('"') and token.end() - token.start() == 1:
                self._at = token.start()  # the string goes on in the next chunk
                return
            self._at = token.end()
            self._depth += (mark in b"[{") - (mark in b"]}")
            if self._depth == 1 and mark == ord("["):
                self._line += self._buffer.count(b"\n", 0, self._at)
                self._start = self._at  # the list itself begins
            elif self._depth == 0 or (self._depth == 1 and mark == ord(",")):
                element = bytes(self._buffer[self._start : token.start()])
                if element.strip() or self._count or self._depth:  # nothing is in an empty list
                    yield self._piece(element)
                self._line += element.count(b"\n")
                self._start = self._at
            if self._depth == 0:
                return
        self._at = len(self._buffer)

    def _piece(self, element: bytes) -> Piece:
        self._count += 1
        lead = len(element) - len(element.lstrip())
        line = self._line + element.count(b"\n", 0, lead)
        return Piece(element[lead:], line, self._offset + self._start + lead)

    def _check_end(self) -> None:
        name = self._stream.name
        if not self._closed:
            raise UserError(
                f"{name}: the JSON list is not closed; it ends after row {self._count}",
                "Fetch or write the file again.",
            )
        for rest in itertools.chain([bytes(self._buffer[self._at :])], self._stream.chunks):
            if rest.strip():
                raise UserError(
                    f"{name}:{self._line}: more follows the JSON list that ends here",
                    "Write one list, or one object on each line.",
                )


def _check_length(length: int, name: str, line: int) -> None:
    if length > MAX_ROW_BYTES:
        raise UserError(
            f"{name}:{line}: the row that starts here is longer than {MAX_ROW_BYTES >> 20} MiB, "
            "the most that is read as one row",
            "Split it into several rows; a .txt file needs the right `separator`.",
        )


def _decoded(piece: Piece, name: str) -> str:
    try:
        return piece.data.decode()
    except UnicodeDecodeError as error:
        at = error.start
        line = piece.line + piece.data.count(b"\n", 0, at)
        detail = f"byte 0x{piece.data[at]:02x} at offset {piece.offset + at} is not UTF-8"
        raise BadRow(Where(name, line), "not UTF-8", detail) from error


def _object(piece: Piece, name: str) -> dict[str, Any]:
    """Parses one JSON object; NaN and Infinity are let through as numbers."""
    text = _decoded(piece, name)
    where = Where(name, piece.line)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and (count := _values_in(text)):
            raise BadRow(
                where, "several objects on a line", f"the line holds {count} objects"
            ) from error
        where = Where(name, piece.line + error.lineno - 1)
        raise BadRow(where, "not JSON", f"not JSON: {error.msg} (column {error.colno})") from error
    except _DuplicateKey as error:
        raise BadRow(where, "duplicate key", f"names {error} twice") from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deep nesting
        raise BadRow(where, "not JSON", f"cannot be parsed: {error}") from error
    if not isinstance(value, dict):
        raise BadRow(where, "not an object", f"holds {described(value)}, not an object with fields")
    return value


class _DuplicateKey(ValueError):
    """A key that an object has twice, so that one of its values would be lost."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        raise _DuplicateKey(repr(next(key for key in keys if keys.count(key) > 1)))
    return fields


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def _values_in(text: str) -> int:
    """How many JSON values stand one behind another in the text; 0 if not all of it is that."""
    count, at = 0, 0
    try:
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
            _, at = _DECODER.raw_decode(text, at)
            count += 1
    except ValueError:
        return 0
    return count


def _csv_lines(stream: Stream, undecodable: list[BadRow]) -> Iterator[str]:
    """Lines for the csv module; those that are not UTF-8 are noted, and stand in for themselves."""
    for piece in split(stream, _NEWLINE, 1):
        try:
            text = _decoded(piece, stream.name)
        except BadRow as bad:
            undecodable.append(bad)
            text = piece.data.decode(errors="replace")
        yield text + "\n" if piece.ended else text


def _csv_header(names: list[str], where: Where, undecodable: list[BadRow]) -> list[str]:
    if undecodable:
        raise UserError(str(undecodable[0]), "The header must be UTF-8.")
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(
            f"{where}: the header names {twice[0]!r} twice", "Give each column its own name."
        )
    return names


def _parquet_rows(batch: Any) -> Iterator[dict[str, Any] | UnicodeDecodeError]:
    """Rows of a record batch; where the batch holds text that is not UTF-8, one by one."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for at in range(batch.num_rows):
            try:
                yield batch.slice(at, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield error
