"""From a row to an example: pieces of text, and which of their characters are trained.

One function a format. Conversations (`chat` and `template`) are rendered by a chat template.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tunesmith.data.bad_rows import BadRow, described
from tunesmith.data.chat import ChatTemplate, Message, TemplateMismatch, render_with_targets
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import Row, Where
from tunesmith.recipe.schema import Rows

Span = tuple[int, int]

# One conversation is tokenised as a whole, which takes some 50 bytes of memory a character.
MAX_CONVERSATION_CHARS = 1 << 24
# Parts of a message that change what it means and that would be lost.
_UNSUPPORTED_KEYS = (
    "tool_calls",
    "function_call",
    "reasoning_content",
    "thinking",
    "weight",
    "train",
)
_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "model": "assistant"}
# `{name}`; doubled braces stand for plain ones. JSON in a template is no placeholder: its names
# are quoted.
_PLACEHOLDER = re.compile(r"\{\{([^\W\d][\w .-]*)\}\}|\{([^\W\d][\w .-]*)\}")


@dataclass(frozen=True, slots=True)
class Segment:
    """Text that is tokenised in one go.

    Attributes:
        text: the characters.
        targets: spans of it, as (begin, end) in characters, that are trained.
    """

    text: str
    targets: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """What one row trains. BOS goes in front of the segments, EOS behind them if `ends`."""

    segments: tuple[Segment, ...]
    ends: bool
    row: Row


ToExample = Callable[[Row], Example | None]
"""Turns a row into an example, None if it is empty; raises BadRow."""


def example_maker(rows: Rows, tokenizer: Tokenizer, template: ChatTemplate | None) -> ToExample:
    """The function that turns rows of this format into examples.

    Args:
        rows: format, fields and texts.
        tokenizer: tells which strings are special tokens.
        template: of conversations; None for formats that have none.
    """
    if rows.format == "text":
        return lambda row: _text(row, rows, tokenizer)
    if rows.format == "prompt_completion":
        return lambda row: _prompt_completion(row, rows, tokenizer)
    assert template is not None
    if rows.format == "chat":
        return lambda row: _conversation(row, chat_messages(row, rows), tokenizer, template)
    return lambda row: _conversation(row, template_messages(row, rows), tokenizer, template)


def chat_messages(row: Row, rows: Rows) -> list[Message]:
    """The checked conversation of a row of format `chat`."""
    messages = _field(row, rows.fields.messages, list, "a list of messages")
    checked = [_message(row.where, at, message) for at, message in enumerate(messages, 1)]
    _check_order(row.where, checked)
    return checked


def template_messages(row: Row, rows: Rows) -> list[Message]:
    """The conversation that the texts of `template` make of a row's fields."""
    template = rows.template
    assert template is not None

    def filled(text: str) -> str:
        def value(match: re.Match[str]) -> str:
            return "{" + match[1] + "}" if match[1] else _text_field(row, match[2])

        return _PLACEHOLDER.sub(value, text)

    texts = {"system": template.system, "user": template.user, "assistant": template.assistant}
    messages = [Message(role, filled(text)) for role, text in texts.items() if text is not None]
    _check_order(row.where, messages)
    return messages


def _text(row: Row, rows: Rows, tokenizer: Tokenizer) -> Example | None:
    text = _text_field(row, rows.fields.text)
    _refuse_tokens(row.where, f"field {rows.fields.text!r}", tokenizer.edge_token_in(text))
    return Example((_whole(text, target=True),), True, row) if text.strip() else None


def _prompt_completion(row: Row, rows: Rows, tokenizer: Tokenizer) -> Example:
    names = (rows.fields.prompt, rows.fields.completion)
    prompt, completion = (_text_field(row, name) for name in names)
    for name, text in zip(names, (prompt, completion), strict=True):
        _refuse_tokens(row.where, f"field {name!r}", tokenizer.edge_token_in(text))
    if not completion.strip():
        raise BadRow(row.where, "empty answer", f"field {names[1]!r} is empty")
    # Tokenised apart: what is generated from the prompt alone continues the very same tokens.
    return Example((_whole(prompt, target=False), _whole(completion, target=True)), True, row)


def _conversation(
    row: Row, messages: list[Message], tokenizer: Tokenizer, template: ChatTemplate
) -> Example:
    for at, message in enumerate(messages, 1):
        # A turn's marker inside of a message would forge a turn.
        found = tokenizer.special_token_in(message.content)
        _refuse_tokens(row.where, f"message {at} ({message.role})", found)
    if (size := sum(len(message.content) for message in messages)) > MAX_CONVERSATION_CHARS:
        detail = f"the conversation has {size:,} characters, the most is {MAX_CONVERSATION_CHARS:,}"
        raise BadRow(row.where, "conversation too long", detail)
    try:
        text, targets = render_with_targets(template, messages, tokenizer)
    except TemplateMismatch as mismatch:
        raise BadRow(row.where, "template does not fit", str(mismatch)) from mismatch
    return Example((Segment(text, targets),), False, row)


def _whole(text: str, *, target: bool) -> Segment:
    return Segment(text, ((0, len(text)),) if target else ())


def _field(row: Row, name: str, kind: type, wanted: str) -> Any:
    if name not in row.fields:
        held = ", ".join(map(repr, nearest(name, row.fields)))
        raise BadRow(
            row.where, "missing field", f"has no field {name!r}; it has {held or 'no fields'}"
        )
    value = row.fields[name]
    if not isinstance(value, kind):
        detail = f"field {name!r} holds {described(value)}, {wanted} is needed"
        raise BadRow(row.where, "wrong type", detail)
    return value


def _text_field(row: Row, name: str) -> str:
    text = _field(row, name, str, "text")
    _check_text(row.where, f"field {name!r}", text)
    return text


def _check_text(where: Where, what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        detail = f"{what} holds {half}, half of a surrogate pair, which is no character"
        raise BadRow(where, "lone surrogate", detail) from error


def _refuse_tokens(where: Where, what: str, token: str | None) -> None:
    if token is not None:
        detail = f"{what} holds {token}, which is a control token and not text"
        raise BadRow(where, "control token in text", detail)


def _message(where: Where, at: int, message: Any) -> Message:
    """Checks one entry of `messages`."""
    what = f"message {at}"
    if not isinstance(message, dict):
        raise BadRow(where, "wrong type", f"{what} is {described(message)}, not an object")
    if "from" in message and "role" not in message:
        detail = f"{what} has `from` and `value` (ShareGPT); `role` and `content` are needed"
        raise BadRow(where, "ShareGPT messages", detail)
    if lost := [key for key in _UNSUPPORTED_KEYS if message.get(key) is not None]:
        raise BadRow(
            where, "unsupported message", f"{what} has `{lost[0]}`, which is not supported"
        )
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            held = described(message[key]) if key in message else "missing"
            raise BadRow(where, "wrong type", f"{what}: `{key}` is {held}, text is needed")
    role, content = message["role"], message["content"]
    if role not in _ROLES:
        detail = f"{what} has the role {role!r}; known are system, user and assistant"
        raise BadRow(where, "unknown role", detail)
    _check_text(where, what, content)
    return Message(_ROLES[role], content)


def _check_order(where: Where, messages: list[Message]) -> None:
    """At most one system message, then user and assistant in turn, ending with an answer."""
    first = 1 if messages and messages[0].role == "system" else 0
    expected = "user"
    for at, message in enumerate(messages[first:], first + 1):
        if message.role != expected:
            detail = f"message {at} is the {message.role}'s where the {expected}'s turn is due"
            raise BadRow(where, "roles do not alternate", detail)
        if message.role == "assistant" and not message.content.strip():
            raise BadRow(where, "empty answer", f"message {at} (assistant) is empty")
        expected = "assistant" if expected == "user" else "user"
    if not messages or messages[-1].role != "assistant":
        detail = "the conversation is empty" if not messages else "the last message is no answer"
        raise BadRow(where, "no answer at the end", detail)


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names, those most like `name` first."""

    def likeness(other: str) -> float:
        return difflib.SequenceMatcher(None, name.lower(), str(other).lower()).ratio()

    return sorted(map(str, names), key=likeness, reverse=True)
