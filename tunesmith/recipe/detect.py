"""Which format fits somebody's rows: told by the names of their fields and by what they hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunesmith.errors import UserError
from tunesmith.recipe.load import yaml_value

# Names of fields that are often met. Earlier ones win; of a pair the given one comes first.
PROMPT_AND_COMPLETION = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "answer"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("query", "answer"),
    ("input", "output"),
    ("input", "target"),
    ("source", "target"),
)
MATERIAL = ("input", "context")  # what an instruction or a question is about
TEXT = ("text", "content", "document", "story", "article", "body")
QUESTION = ("question", "sql_prompt", "instruction", "prompt", "query", "input", "text")

# Marks between the documents of a text file, the surest first.
SEPARATORS = ("<|endoftext|>", "\n---\n", "\n\n\n", "\n\n")

# A few rows in a hundred may lack a field; they are left out, and counted.
MOST = 0.9

Fields = Mapping[str, Any]


@dataclass
class Format:
    """How rows become text.

    Attributes:
        kind: the recipe's `format`.
        why: what in the data speaks for it.
        needed: fields that a row must have.
        yaml: further lines for `data.train`.
        also: fields that may be empty.
        text_to_sql: lines for `eval.text_to_sql`.
        prompt: the first row's prompt, where it can serve as a sample.
        doubts: what the user has to look at.
    """

    kind: str
    why: str
    needed: list[str]
    yaml: list[str]
    also: list[str] = field(default_factory=list)
    text_to_sql: list[str] = field(default_factory=list)
    prompt: str | None = None
    doubts: list[str] = field(default_factory=list)


def detect_documents(text: str) -> tuple[Format, list[Fields]]:
    """Which mark separates the documents of a text file, and the documents in its head."""
    text = text.replace("\r\n", "\n")
    for separator in SEPARATORS:
        documents = [part for part in text.split(separator) if part.strip()]
        if len(documents) > 1:
            why = f"{text.count(separator)} such marks seen; what lies between is a document."
            break
    else:
        separator, documents = None, [text]
        why = "No mark between documents was seen, so each file is one."
    chosen = Format("text", why, ["text"], [f"separator: {yaml_value(separator)}"])
    chosen.prompt = _opening(documents[0])
    if separator == "\n\n":
        chosen.doubts.append(
            "Blank lines are taken for the ends of documents. If they only part paragraphs, set "
            "`separator: null`."
        )
    return chosen, [{"text": document} for document in documents]


def detect_format(rows: Sequence[Fields], file: str) -> Format:
    """The format of rows with fields.

    Args:
        rows: at least one.
        file: for messages.

    Raises:
        UserError: none fits for sure.
    """
    texts = [name for name in rows[0] if _share(rows, name, _is_text) >= MOST]
    found = _text_to_sql(rows, texts) or _chat(rows) or _pair(rows, texts) or _text(rows, texts)
    if found:
        return found
    held = ", ".join(f"{name} ({type(value).__name__})" for name, value in rows[0].items())
    raise UserError(
        f"{file}: cannot tell which fields are given and which are trained: {held or 'no fields'}",
        "Copy a recipe (`tunesmith recipes copy text-to-sql-gemma3-270m`) and put your fields "
        "into its `template`, or rename the fields to `prompt` and `completion`.",
    )


def _text_to_sql(rows: Sequence[Fields], texts: list[str]) -> Format | None:
    """Question and CREATE TABLE statements to a query: told by what the fields hold."""
    queries = _matching(rows, texts, r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b")
    schemas = _matching(rows, texts, r"(?s).*\bCREATE TABLE\b")
    left = [name for name in texts if name not in (*queries, *schemas)]
    question = next((name for name in QUESTION if name in left), left[0] if left else None)
    if not (queries and schemas and question):
        return None
    query, schema = queries[0], schemas[0]
    names = {"question": question, "context": schema, "sql": query}
    chosen = Format(
        "template",
        f"`{schema}` holds CREATE TABLE statements and `{query}` queries: text-to-SQL.",
        [question, schema, query],
        _template("{" + schema + "}\n\n{" + question + "}", query, [schema, question]),
        doubts=["No system message is set: add `system:` beside `user:` if you want one."],
    )
    if filled := _matching(rows, texts, r"(?s).*\bINSERT INTO\b"):
        names["setup"] = filled[0]
    else:
        chosen.doubts.append(
            "The tables hold no rows, so running a query proves nothing: look at exact match."
        )
    chosen.text_to_sql = [f"{key}: {yaml_value(name)}" for key, name in names.items()]
    return chosen


def _chat(rows: Sequence[Fields]) -> Format | None:
    """A list of messages with role and content."""

    def messages(*keys: str) -> list[str]:
        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(
                isinstance(message, dict) and all(key in message for key in keys)
                for message in value
            )

        return [name for name in rows[0] if rows[0][name] and _share(rows, name, fits) >= MOST]

    if messages("from", "value"):
        raise UserError(
            f"the messages in field {messages('from', 'value')[0]!r} have `from` and `value`",
            "Rename them to `role` (user, assistant, system) and `content`, then try again.",
        )
    if not (found := messages("role", "content")):
        return None
    name = found[0]
    first = rows[0][name][0]
    return Format(
        "chat",
        f"`{name}` is a list of messages with role and content.",
        [name],
        [] if name == "messages" else ["fields:", f"  messages: {yaml_value(name)}"],
        prompt=first["content"] if first["role"] == "user" else None,
    )


def _pair(rows: Sequence[Fields], texts: list[str]) -> Format | None:
    """Something given and its answer."""
    names = {name.lower(): name for name in texts}
    pair = next((p for p in PROMPT_AND_COMPLETION if names.keys() >= set(p)), None)
    if pair is None:
        return None
    prompt, completion = names[pair[0]], names[pair[1]]
    why = f"`{prompt}` is given and `{completion}` is trained"
    material = [n for n in rows[0] if n.lower() in MATERIAL and _share(rows, n, _is_string) == 1.0]
    material = [n for n in material if n != prompt and any(_is_text(row[n]) for row in rows)]
    spaced = [_is_spaced(row.get(prompt), row.get(completion)) for row in rows]
    if sum(spaced) >= MOST * len(rows) and not material:
        wanted = {"prompt": prompt, "completion": completion}
        other = [f"  {key}: {yaml_value(n)}" for key, n in wanted.items() if key != n]
        return Format(
            "prompt_completion",
            f"{why}; the white space between them is in the rows.",
            [prompt, completion],
            ["fields:", *other] if other else [],
            prompt=str(rows[0].get(prompt) or ""),
            doubts=_unused(texts, [prompt, completion]),
        )
    user = "\n\n".join("{" + name + "}" for name in (prompt, *material))
    return Format(
        "template",
        f"{why}, as turns of a conversation: no white space in the rows parts them.",
        [prompt, completion],
        _template(user, completion, [prompt, *material]),
        also=material,
        prompt=None if material else str(rows[0].get(prompt) or ""),
        doubts=[
            *(f"`{name}` follows `{prompt}`: see whether that reads well." for name in material),
            *_unused(texts, [prompt, completion, *material]),
        ],
    )


def _text(rows: Sequence[Fields], texts: list[str]) -> Format | None:
    """One column of text."""
    known = [name for name in texts if name.lower() in TEXT]
    if not known and len(texts) != 1:
        return None
    name = (known or texts)[0]
    return Format(
        "text",
        f"`{name}` holds the text; all of it is trained.",
        [name],
        [] if name == "text" else ["fields:", f"  text: {yaml_value(name)}"],
        prompt=_opening(str(rows[0].get(name) or "")),
        doubts=_unused(texts, [name]),
    )


def _share(rows: Sequence[Fields], name: str, fits: Callable[[Any], bool]) -> float:
    """Share of the rows in which a field fits."""
    return sum(fits(row.get(name)) for row in rows) / len(rows)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_spaced(prompt: Any, completion: Any) -> bool:
    """Whether the two can stand one behind the other as they are."""
    return (
        _is_text(prompt)
        and _is_text(completion)
        and (prompt[-1] + completion[0]).strip() != (prompt[-1] + completion[0])
    )


def _matching(rows: Sequence[Fields], names: list[str], pattern: str) -> list[str]:
    """Fields whose text begins with the pattern in four rows of five."""
    found = re.compile(pattern, re.IGNORECASE)
    return [
        name
        for name in names
        if _share(rows, name, lambda value: _is_text(value) and bool(found.match(value))) >= 0.8
    ]


def _template(user: str, answer: str, given: list[str]) -> list[str]:
    for name in (*given, answer):
        if not re.fullmatch(r"[^\W\d][\w .-]*", name):
            raise UserError(
                f"the field {name!r} cannot stand between braces in a template",
                "Rename it: a letter first, then letters, digits, spaces, `_`, `.` and `-`.",
            )
    quoted = yaml_value("{" + answer + "}")
    return ["template:", f"  user: {yaml_value(user)}", f"  assistant: {quoted}"]


def _opening(text: str) -> str:
    return " ".join(text.split()[:8])


def _unused(texts: list[str], used: list[str]) -> list[str]:
    rest = [f"`{name}`" for name in texts if name not in used]
    return [f"Not used: {', '.join(rest)}."] if rest else []
