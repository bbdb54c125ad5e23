"""YAML text to plain values, with the place of every key.

Only what a recipe needs of YAML 1.2 is read: mappings, lists and the scalars of its core schema
(https://yaml.org/spec/1.2.2/#103-core-schema), so `1e-5` is a number while `no` and `2024-01-31`
are texts. Aliases, tags and further documents are refused: a recipe needs none of them, and a few
lines of nested aliases grow without bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tunesmith.errors import UserError

if TYPE_CHECKING:
    from ruamel.yaml.events import Event, ScalarEvent

MAX_CHARACTERS = 256 * 1024
MAX_DEPTH = 20

KeyPath = tuple[str | int, ...]

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF_OR_NAN = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class Place(NamedTuple):
    """Where a value was written: a line of a file, or a flag (which has no lines)."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


class Problem(NamedTuple):
    """Something wrong with a recipe, told together with all others."""

    place: Place
    path: str
    text: str

    def __str__(self) -> str:
        named = self.path and self.place.source != f"--set {self.path}"
        return f"{self.place}: {self.path}: {self.text}" if named else f"{self.place}: {self.text}"


@dataclass
class Tree:
    """Values as written.

    Attributes:
        value: the root; dicts, lists, str, int, float, bool and None.
        places: where each key and list item stands, by path; `()` is the root.
        problems: keys written twice. The first value stays.
    """

    value: Any
    places: dict[KeyPath, Place]
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: KeyPath) -> Place:
        """The place of a path or, for what was not written, of its nearest section."""
        while path not in self.places:
            path = path[:-1]
        return self.places[path]


def dotted(path: KeyPath) -> str:
    """`("data", "files", 0)` as `data.files[0]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(
        "."
    )


def parse_yaml(text: str, source: str, *, has_lines: bool = True) -> Tree:
    """Read one YAML document.

    Args:
        text: the document.
        source: file name or flag, for messages.
        has_lines: false for a flag, whose messages carry no line.

    Raises:
        UserError: the text is not YAML, is too long or too deep, or uses aliases, tags or several
            documents.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    if len(text) > MAX_CHARACTERS:
        raise UserError(
            f"{source}: {len(text):,} characters are too many for a recipe, "
            f"which may have {MAX_CHARACTERS:,}",
            "Keep rows and long texts in files of their own and name them in `data.train.files`.",
        )
    builder = _Builder(source, has_lines)
    try:
        return builder.build(YAML(typ="safe", pure=True).parse(text))
    except UserError:
        raise
    except MarkedYAMLError as error:
        raise _syntax_error(error, text, builder) from None
    except Exception as error:
        # ruamel lets bare exceptions through, such as chr()'s for "\\UFFFFFFFF" in a text.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{source}: not readable as YAML: {reason}") from None


class _Builder:
    """Builds values from the parser's events, as it alone knows the line of every key."""

    def __init__(self, source: str, has_lines: bool) -> None:
        self.source = source
        self.has_lines = has_lines
        self.tree = Tree(value=None, places={(): Place(source)})

    def place(self, line: int) -> Place:
        return Place(self.source, line + 1 if self.has_lines else None)

    def build(self, events: Iterator[Event]) -> Tree:
        from ruamel.yaml.events import DocumentStartEvent

        starts = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                starts += 1
                if starts > 1:
                    place = self.place(event.start_mark.line)
                    raise UserError(
                        f"{place}: a second document starts here (`---`)",
                        "A recipe is one document; keep each recipe in a file of its own.",
                    )
                self.tree.value = self.node(next(events), events, ())
        return self.tree

    def node(self, event: Event, events: Iterator[Event], path: KeyPath) -> Any:
        from ruamel.yaml.events import AliasEvent, MappingStartEvent, ScalarEvent

        place = self.place(event.start_mark.line)
        if isinstance(event, AliasEvent):
            raise UserError(
                f"{place}: aliases (`*{event.anchor}`) are not read in recipes",
                "Write the value again, or put the text in quotes if the * belongs to it.",
            )
        if (tag := getattr(event, "tag", None)) is not None:
            raise UserError(
                f"{place}: tags (`{tag}`) are not read in recipes",
                "Put the text in quotes if the ! belongs to it.",
            )
        if isinstance(event, ScalarEvent):
            check_text(event.value, place)
            return _scalar(event)
        if len(path) >= MAX_DEPTH:
            raise UserError(f"{place}: nested more than {MAX_DEPTH} levels deep; no recipe is")
        if isinstance(event, MappingStartEvent):
            return self.mapping(events, path)
        return self.sequence(events, path)

    def sequence(self, events: Iterator[Event], path: KeyPath) -> list[Any]:
        from ruamel.yaml.events import SequenceEndEvent

        items: list[Any] = []
        while not isinstance(event := next(events), SequenceEndEvent):
            item_path = (*path, len(items))
            self.tree.places[item_path] = self.place(event.start_mark.line)
            items.append(self.node(event, events, item_path))
        return items

    def mapping(self, events: Iterator[Event], path: KeyPath) -> dict[str, Any]:
        from ruamel.yaml.events import MappingEndEvent, ScalarEvent

        values: dict[str, Any] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            place = self.place(event.start_mark.line)
            if not isinstance(event, ScalarEvent):
                raise UserError(
                    f"{place}: a key must be a plain word",
                    "A text that starts with { or [ needs quotes around it.",
                )
            key = event.value
            check_text(key, place)
            key_path = (*path, key)
            if key in values:
                first = self.tree.places[key_path]
                where = f", first on line {first.line}" if first.line else ""
                self.tree.problems.append(
                    Problem(place, dotted(key_path), f"written twice{where}; keep one")
                )
                _Builder(self.source, self.has_lines).node(
                    next(events), events, key_path
                )  # skips it
                continue
            self.tree.places[key_path] = place
            values[key] = self.node(next(events), events, key_path)
        return values


def check_text(text: str, place: Place) -> None:
    """Refuse what no file can hold: `"\\ud800"`, or a flag's byte that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise UserError(
            f"{place}: {half} is half of a surrogate pair, which is no character"
        ) from None


def _scalar(event: ScalarEvent) -> str | int | float | bool | None:
    """A scalar by the core schema of YAML 1.2; quoted and block scalars are texts."""
    text = event.value
    if not event.implicit[0]:
        return text
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text) and len(text) < 19:  # beyond 64 bits no field has a use for it
        return int(text)
    if _OCTAL_OR_HEX.fullmatch(text) and len(text) < 19:
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INF_OR_NAN.fullmatch(text):
        return float(text.replace(".", ""))
    return text


# What the parser's complaint most likely comes from: words of it, in plain words, what to do.
_CAUSES = (
    (
        ("mapping values",),
        "a colon where no key can stand",
        "Indent the line like its neighbours, or put quotes around a text that holds `: `.",
    ),
    (
        ("expected ':'", "<block end>"),
        "this line does not fit the ones above it",
        "Every key needs `: ` after it, and keys of one section the same indentation.",
    ),
    (
        ("escape character",),
        "a backslash in double quotes starts an escape, and this one is none",
        "Use single quotes around the text, or write the backslash twice.",
    ),
)
_UNCLOSED = ("stream end", "end of stream", "but got ':'")


def _syntax_error(error: Any, text: str, builder: _Builder) -> UserError:
    """The parser's complaint with its line, a likely cause and the remedy."""
    mark = error.problem_mark or error.context_mark
    if error.context_mark and any(words in error.problem for words in _UNCLOSED):
        mark = error.context_mark  # where the quote or bracket opens
    lines = text.split("\n")
    number = min(mark.line, len(lines) - 1) if mark else 0
    what, hint = _likely_cause(error, lines, number)
    return UserError(f"{builder.place(number)}: {what}", hint)


def _likely_cause(error: Any, lines: list[str], number: int) -> tuple[str, str]:
    problem = error.problem or "cannot be read"
    line = lines[number]
    if glued := _glued_key(problem, lines, number):
        return glued
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in problem:
        return "a tab is used to indent", "YAML indents with spaces alone; replace the tab."
    if any(words in problem for words in _UNCLOSED):
        return "a quote or bracket that opens here is not closed", "Close it."
    if value := re.match(r"\s*(?:- )?[\w-]+: +([{\[@`%&*!])", line):
        return (
            f"the value starts with `{value[1]}`, which has a meaning of its own in YAML",
            "Put the whole value in double quotes.",
        )
    for words, what, hint in _CAUSES:
        if any(word in problem for word in words):
            return what, hint
    return f"not valid YAML: {problem}", "Check the line above it as well."


def _glued_key(problem: str, lines: list[str], number: int) -> tuple[str, str] | None:
    """A key glued to its value (`epochs:3`) is a text, which runs on into the next lines."""
    if "':'" not in problem and "mapping values" not in problem:
        return None
    for at in range(number, max(number - 3, -1), -1):
        if glued := re.match(r"\s*(?:- )?([\w-]+):[^\s/]", lines[at]):
            where = "" if at == number else f" on line {at + 1}"
            what = f"a space is missing after `{glued[1]}:`{where}"
            return what, f"Write `{glued[1]}: VALUE`."
    return None
