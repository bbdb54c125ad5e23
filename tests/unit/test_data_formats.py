"""From rows to examples. G numbers: known ways in which this goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunesmith.data.bad_rows import BadRow
from tunesmith.data.chat import choose_template
from tunesmith.data.encode import encode_examples, prompt_of
from tunesmith.data.formats import Example, example_maker
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import Encoded, Row, Where
from tunesmith.recipe.schema import Fields, Rows, Template

WHERE = Where("rows.jsonl", 7)


def example(tokenizer: Tokenizer, values: dict[str, Any], **options: Any) -> Example | None:
    rows = Rows(files=["rows.jsonl"], **options)
    template = choose_template(tokenizer) if rows.format in ("chat", "template") else None
    return example_maker(rows, tokenizer, template)(Row(values, WHERE))


def encoded(tokenizer: Tokenizer, values: dict[str, Any], **options: Any) -> Encoded:
    made = example(tokenizer, values, **options)
    assert made is not None
    (result,) = encode_examples([made], tokenizer)
    assert isinstance(result, Encoded)
    return result


def trained(tokenizer: Tokenizer, result: Encoded) -> str:
    return tokenizer.decode(result.ids[result.target], skip_special=False)


def chat(*turns: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def refused(tokenizer: Tokenizer, fields: dict[str, Any], **options: Any) -> str:
    with pytest.raises(BadRow) as told:
        example(tokenizer, fields, **options)
    assert told.value.where == WHERE
    assert str(told.value).startswith("rows.jsonl:7: ")
    return told.value.detail


def test_text_is_all_target_but_bos(tokenizer: Tokenizer) -> None:
    """G2: one BOS in front, EOS at the end and trained."""
    result = encoded(tokenizer, {"text": "the cat"}, format="text")
    assert result.ids.tolist() == [2, *tokenizer.encode("the cat"), 1]
    assert result.target.tolist() == [False] + [True] * (len(result.ids) - 1)
    assert prompt_of(result).tolist() == [2]


def test_completion_and_its_end_are_target(tokenizer: Tokenizer) -> None:
    """G2, G5: tokenised apart, so the prompt is an exact prefix even where merges would cross."""
    fields = {"prompt": "Q: th", "completion": "e cat"}
    result = encoded(tokenizer, fields, format="prompt_completion")
    prompt, completion = tokenizer.encode("Q: th"), tokenizer.encode("e cat")
    assert tokenizer.encode("Q: the cat") != prompt + completion
    assert result.ids.tolist() == [2, *prompt, *completion, 1]
    assert trained(tokenizer, result) == "e cat<eos>"
    assert prompt_of(result).tolist() == [2, *prompt]


def test_empty_prompt_is_fine(tokenizer: Tokenizer) -> None:
    result = encoded(tokenizer, {"prompt": "", "completion": "x"}, format="prompt_completion")
    assert trained(tokenizer, result) == "x<eos>"


def test_field_names_may_differ(tokenizer: Tokenizer) -> None:
    fields = Fields(text="story", prompt="q", completion="a", messages="talk")
    rows = {
        "q": "x",
        "a": "y",
        "story": "z",
        "talk": chat(("user", "a"), ("assistant", "b"))["messages"],
    }
    for form, expected in {
        "text": "z<eos>",
        "prompt_completion": "y<eos>",
        "chat": "b<end_of_turn>",
    }.items():
        assert trained(tokenizer, encoded(tokenizer, rows, format=form, fields=fields)) == expected


def test_template_fills_fields_into_a_conversation(tokenizer: Tokenizer) -> None:
    """Values are put in as they are: braces in them are not placeholders again."""
    template = Template(
        system="Use {{field}}.", user='{"a": {b c}} {question}', assistant="{sql} {x{{sql}}}"
    )
    fields = {"b c": "{sql}", "question": "Q\n", "sql": "SELECT 1", "x": "unused"}
    result = encoded(tokenizer, fields, format="template", template=template)
    text = tokenizer.decode(result.ids, skip_special=False)
    assert text == (
        '<bos><start_of_turn>user\nUse {field}.\n\n{"a": {sql}} Q<end_of_turn>\n'
        "<start_of_turn>model\nSELECT 1 {x{sql}}<end_of_turn>\n"
    )


PAIR = {"format": "prompt_completion"}
SQL = {"format": "template", "template": Template(user="{q}", assistant="{sql}")}


@pytest.mark.parametrize(
    ("fields", "options", "detail"),
    [
        ({"txt": "a", "id": "b"}, {}, "has no field 'text'; it has 'txt', 'id'"),
        ({}, {}, "has no field 'text'; it has no fields"),
        ({"text": 3}, {}, "field 'text' holds a number (3), text is needed"),
        ({"text": True}, {}, "field 'text' holds a truth value (True), text is needed"),
        ({"text": None}, {}, "field 'text' holds null, text is needed"),
        ({"text": float("nan")}, {}, "field 'text' holds a number (nan), text is needed"),
        ({"text": ["a"]}, {}, "field 'text' holds a list, text is needed"),
        (
            {"text": "a\ud800"},
            {},
            "field 'text' holds \\ud800, half of a surrogate pair, which is no character",
        ),
        ({"prompt": "a", "completion": " \n"}, PAIR, "field 'completion' is empty"),
        ({"q": "a", "sql": 5}, SQL, "field 'sql' holds a number (5), text is needed"),
        ({"sql": "a", "qq": "b"}, SQL, "has no field 'q'; it has 'qq', 'sql'"),
        (
            {"messages": "hi"},
            {"format": "chat"},
            "field 'messages' holds text ('hi'), a list of messages is needed",
        ),
    ],
)
def test_wrong_field_is_named(
    tokenizer: Tokenizer, fields: dict[str, Any], options: dict[str, Any], detail: str
) -> None:
    """G28: line and field named; fields that the row has are told, nearest first."""
    assert refused(tokenizer, fields, **{"format": "text", **options}) == detail


@pytest.mark.parametrize("form", ["text", "prompt_completion"])
def test_bos_eos_and_padding_in_a_text_are_refused(tokenizer: Tokenizer, form: str) -> None:
    """G2: a second BOS, or an end in the middle; turn markers written by hand are fine."""
    for token in ("<bos>", "<eos>", "<pad>"):
        fields = {"text": f"a{token}b", "prompt": f"{token}a", "completion": "b"}
        assert f"holds {token}, which is a control token" in refused(tokenizer, fields, format=form)
    own = "<start_of_turn>user\nHi<end_of_turn>"
    fields = {"text": own, "prompt": "p", "completion": own}
    assert 106 in encoded(tokenizer, fields, format=form).ids


@pytest.mark.parametrize(
    "token", ["<end_of_turn>", "<start_of_turn>", "<bos>", "<eos>", "<unused3>"]
)
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_control_token_in_a_message_would_forge_a_turn(
    tokenizer: Tokenizer, token: str, role: str
) -> None:
    turns = {"system": "s", "user": "u", "assistant": "a"}
    turns[role] += f"{token}\n<start"
    detail = refused(tokenizer, chat(*turns.items()), format="chat")
    at = list(turns).index(role) + 1
    assert detail == f"message {at} ({role}) holds {token}, which is a control token and not text"


@pytest.mark.parametrize(
    ("turns", "detail"),
    [
        (
            [("user", "a"), ("user", "b"), ("assistant", "c")],
            "message 2 is the user's where the assistant's turn is due",
        ),
        ([("assistant", "a")], "message 1 is the assistant's where the user's turn is due"),
        (
            [("user", "a"), ("assistant", "b"), ("system", "c")],
            "message 3 is the system's where the user's turn is due",
        ),
        (
            [("system", "a"), ("system", "b")],
            "message 2 is the system's where the user's turn is due",
        ),
        ([("user", "a"), ("assistant", " \n")], "message 2 (assistant) is empty"),
        ([("user", "a"), ("assistant", "b"), ("user", "c")], "the last message is no answer"),
        ([("user", "a")], "the last message is no answer"),
        ([("system", "a")], "the last message is no answer"),
        ([], "the conversation is empty"),
        ([("tool", "a")], "message 1 has the role 'tool'; known are system, user and assistant"),
        ([("user", ["a"])], "message 1: `content` is a list, text is needed"),
        ([("user", None)], "message 1: `content` is null, text is needed"),
        (
            [("user", "\udfff")],
            "message 1 holds \\udfff, half of a surrogate pair, which is no character",
        ),
    ],
)
def test_conversation_that_is_no_conversation(
    tokenizer: Tokenizer, turns: list[Any], detail: str
) -> None:
    """G3."""
    assert refused(tokenizer, chat(*turns), format="chat") == detail


def test_messages_of_other_shapes(tokenizer: Tokenizer) -> None:
    share = {"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    assert "ShareGPT" in refused(tokenizer, share, format="chat")
    assert (
        refused(tokenizer, {"messages": ["a"]}, format="chat")
        == "message 1 is text ('a'), not an object"
    )
    assert refused(tokenizer, {"messages": [{"role": "user"}]}, format="chat") == (
        "message 1: `content` is missing, text is needed"
    )
    calls = {"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}
    assert (
        refused(tokenizer, calls, format="chat")
        == "message 1 has `tool_calls`, which is not supported"
    )


def test_model_is_another_name_for_assistant(tokenizer: Tokenizer) -> None:
    result = encoded(tokenizer, chat(("user", "a"), ("model", "b")), format="chat")
    assert trained(tokenizer, result) == "b<end_of_turn>"


def test_parquet_null_keys_are_not_lost_meaning(tokenizer: Tokenizer) -> None:
    """Parquet gives every message all keys of all messages, null where it had none."""
    fields = chat(("user", "a"), ("assistant", "b"))
    for message in fields["messages"]:
        message["tool_calls"] = None
    assert encoded(tokenizer, fields, format="chat").target.any()


def test_empty_text_is_no_example(tokenizer: Tokenizer) -> None:
    """It is counted as empty, and is no error."""
    assert example(tokenizer, {"text": " \n\u2029"}, format="text") is None


def test_conversation_above_the_limit_says_so(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G27: one conversation is tokenised as a whole, so its size is bounded."""
    monkeypatch.setattr("tunesmith.data.formats.MAX_CONVERSATION_CHARS", 100)
    fields = chat(("user", "a" * 99), ("assistant", "bb"))
    detail = refused(tokenizer, fields, format="chat")
    assert detail == "the conversation has 101 characters, the most is 100"


def test_template_that_refuses_a_row(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = choose_template(tokenizer).source
    refusal = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    )
    (tmp_path / "own.jinja").write_text(refusal + source)
    rows = Rows(files=["x"], format="chat")
    make = example_maker(rows, tokenizer, choose_template(tokenizer, tmp_path / "own.jinja"))
    with pytest.raises(BadRow, match=r"own\.jinja refuses it: no system"):
        make(Row(chat(("system", "s"), ("user", "a"), ("assistant", "b")), WHERE))
