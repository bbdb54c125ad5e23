"""Chat templates and what is trained of a conversation. G numbers: known ways to go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import write_tiny_tokenizer
from tunesmith.data.chat import (
    ChatTemplate,
    Message,
    TemplateMismatch,
    choose_template,
    find_template,
    render_with_targets,
)
from tunesmith.data.encode import encode_examples, prompt_of
from tunesmith.data.formats import Example, Segment
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import Encoded, Row, Where
from tunesmith.errors import UserError

TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
CHAT = [
    Message("system", "Be brief. "),
    Message("user", " Hi \n"),
    Message("assistant", "\nHello "),
    Message("user", "Bye"),
    Message("assistant", "See you"),
]
RENDERED = (
    "<bos><start_of_turn>user\nBe brief. \n\nHi<end_of_turn>\n"
    "<start_of_turn>model\nHello<end_of_turn>\n"
    "<start_of_turn>user\nBye<end_of_turn>\n"
    "<start_of_turn>model\nSee you<end_of_turn>\n"
)
# Another style, with a system turn.
OTHER_STYLE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
)
EOS_STYLE = (
    "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\nA:{% else %}"
    " {{ m.content }}{{ eos_token }}\n{% endif %}{% endfor %}"
)


def encoded(template: ChatTemplate, messages: list[Message], tokenizer: Tokenizer) -> Encoded:
    text, targets = render_with_targets(template, messages, tokenizer)
    example = Example((Segment(text, targets),), False, Row({}, Where("x", 1)))
    (result,) = encode_examples([example], tokenizer)
    assert isinstance(result, Encoded)
    return result


def target_runs(result: Encoded, tokenizer: Tokenizer) -> list[str]:
    """The trained texts, one for each run of targets."""
    runs: list[list[int]] = []
    for at, (id, target) in enumerate(zip(result.ids, result.target, strict=True)):
        if target and (at == 0 or not result.target[at - 1]):
            runs.append([])
        if target:
            runs[-1].append(id)
    return [tokenizer.decode(run, skip_special=False) for run in runs]


def test_gemma3_template_renders_as_gemma3_was_tuned(tokenizer: Tokenizer) -> None:
    """System text in the first user turn and not trimmed, the others trimmed."""
    template = choose_template(tokenizer)
    assert template.name == "gemma3.jinja"
    assert template.render(CHAT) == RENDERED
    opened = template.render(CHAT[:2], add_generation_prompt=True)
    assert opened == RENDERED.partition("Hello")[0]


def test_every_answer_and_its_turn_end_is_trained_and_nothing_else(tokenizer: Tokenizer) -> None:
    """G1, G7: the newline behind the turn end is no target."""
    result = encoded(choose_template(tokenizer), CHAT, tokenizer)
    assert target_runs(result, tokenizer) == ["Hello<end_of_turn>", "See you<end_of_turn>"]
    assert result.ids[result.target][-1] == 106
    assert result.ids[-1] == 107
    assert not result.target[-1]


def test_exactly_one_bos(tokenizer: Tokenizer) -> None:
    """G2: whether the template writes it or not."""
    for source in (OTHER_STYLE, EOS_STYLE):
        template = ChatTemplate(source, "x", **TOKENS)
        result = encoded(template, CHAT[1:], tokenizer)
        assert result.ids[0] == 2
        assert (result.ids == 2).sum() == 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (OTHER_STYLE.replace("}assistant\n", "}assistant\n"), ["Hello<end_of_turn>"]),
        (EOS_STYLE, [" \nHello <eos>"]),
    ],
)
def test_supervised_is_answer_and_turn_end_for_every_template(
    tokenizer: Tokenizer, source: str, expected: list[str]
) -> None:
    """G7."""
    template = ChatTemplate(source, "x", **TOKENS)
    result = encoded(template, CHAT[1:3], tokenizer)
    assert target_runs(result, tokenizer) == expected


CONTENTS = st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=2)


@settings(deadline=None)
@given(CONTENTS)
def test_prompt_is_an_exact_token_prefix(tokenizer: Tokenizer, contents: list[str]) -> None:
    """G5: whatever the texts are, the prompt alone has the tokens it has in front of the answer."""
    check_prefix(tokenizer, contents)


@pytest.mark.heavy
def test_prompt_is_an_exact_token_prefix_in_gemmas_tokens(gemma_270m: Path) -> None:
    """G5."""
    real = Tokenizer.load(gemma_270m)
    settings(deadline=None)(given(CONTENTS)(lambda contents: check_prefix(real, contents)))()


def check_prefix(tokenizer: Tokenizer, contents: list[str]) -> None:
    contents = contents[: len(contents) // 2 * 2]
    if any(tokenizer.special_token_in(content) for content in contents):
        return
    roles = ["user", "assistant"] * (len(contents) // 2)
    messages = [Message(*pair) for pair in zip(roles, contents, strict=True)]
    template = choose_template(tokenizer)
    result = encoded(template, messages, tokenizer)
    prompt = template.render(messages[:-1], add_generation_prompt=True)
    assert prompt_of(result).tolist() == tokenizer.encode(prompt)
    assert result.ids.tolist() == tokenizer.encode(template.render(messages))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        # The generation prompt holds something that training text lacks.
        (OTHER_STYLE.replace("assistant\n", "assistant\n<think></think>"), "is no prefix"),
        (
            "{% for m in messages %}{{ m.content }}\n{% endfor %}",
            "so a model would not learn to stop",
        ),
        (
            OTHER_STYLE.replace("m.content | trim", "m.content | upper"),
            "turns an answer into 'THREE,",
        ),
        (
            OTHER_STYLE.replace("{{ m.role", "{{ bos_token }}{{ m.role"),
            "writes <bos> more than once",
        ),
        ("{{ raise_exception('no user') }}", "refuses it: no user"),
        ("{{ messages[0].content.nothing.more }}", "refuses it: "),
        ("{{ 1 / 0 }}", "refuses it: "),
    ],
)
def test_template_that_cannot_be_trained_with_is_refused_at_once(
    tokenizer: Tokenizer, tmp_path: Path, source: str, message: str
) -> None:
    """G5, G7: before anything heavy."""
    (tmp_path / "own.jinja").write_text(source)
    with pytest.raises(UserError, match=message) as told:
        choose_template(tokenizer, tmp_path / "own.jinja")
    assert "own.jinja" in str(told.value)


def test_token_across_the_answers_edge_is_refused(tokenizer: Tokenizer) -> None:
    """G5: the prompt ends with a space that the answer's first token takes along."""
    source = EOS_STYLE.replace("A:{% else %} ", "A: {% else %}")
    template = ChatTemplate(source, "x", **TOKENS)
    assert tokenizer.encode(" the") != tokenizer.encode(" ") + tokenizer.encode("the")
    text, targets = render_with_targets(
        template, [Message("user", "x"), Message("assistant", "the cat")], tokenizer
    )
    example = Example((Segment(text, targets),), False, Row({}, Where("x", 1)))
    (result,) = encode_examples([example], tokenizer)
    assert str(result).startswith("x:1: a token lies across the edge of an answer")


def test_earlier_answer_that_the_template_drops_is_refused(tokenizer: Tokenizer) -> None:
    """Templates that strip old thoughts would train one text and be asked with another."""
    kept = "m.content if loop.last or m.role == 'user' else '…'"
    template = ChatTemplate(OTHER_STYLE.replace("m.content | trim", kept), "x", **TOKENS)
    render_with_targets(template, CHAT[1:3], tokenizer)
    with pytest.raises(TemplateMismatch, match="turns an answer into '…'"):
        render_with_targets(template, CHAT[1:], tokenizer)


def test_template_runs_in_a_sandbox(tokenizer: Tokenizer) -> None:
    for attack in (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ):
        with pytest.raises(TemplateMismatch, match=r"unsafe|refuses"):
            ChatTemplate(attack, "x", **TOKENS).render(CHAT)


def test_what_huggingface_templates_may_use() -> None:
    source = (
        "{%- for m in messages %}\n    {% if loop.index0 == 1 %}{% break %}{% endif %}\n"
        "    {{- m['content'] | tojson }}{% endfor %}"
        "{% if tools is not none %}tools{% endif %}{{ strftime_now('%%') }}"
    )
    messages = [Message("user", 'é"<'), Message("assistant", "b")]
    assert ChatTemplate(source, "x", **TOKENS).render(messages) == '"é\\"<"%'


def test_syntax_error_names_file_and_line(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("a\n{% if %}")
    with pytest.raises(UserError, match=r"chat template own\.jinja, line 2: "):
        choose_template(tokenizer, tmp_path / "own.jinja")
    with pytest.raises(UserError, match=r"none\.jinja: cannot be read"):
        choose_template(tokenizer, tmp_path / "none.jinja")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", "own"),
        ("chat_template.json", {"chat_template": "own"}),
        ("tokenizer_config.json", {"chat_template": "own"}),
        (
            "tokenizer_config.json",
            {
                "chat_template": [
                    {"name": "rag", "template": "other"},
                    {"name": "default", "template": "own"},
                ]
            },
        ),
    ],
)  # fmt: skip
def test_models_own_template_is_found(tmp_path: Path, name: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / name).write_text(text)
    found = find_template(tmp_path, **TOKENS)
    assert found is not None
    assert found.source == "own"


def test_models_own_template_comes_before_gemma3s(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path, chat_template=OTHER_STYLE)
    assert choose_template(Tokenizer.load(tmp_path)).source == OTHER_STYLE
    (tmp_path / "own.jinja").write_text(OTHER_STYLE + "{# own #}")
    assert "own" in choose_template(Tokenizer.load(tmp_path), tmp_path / "own.jinja").source


def test_base_model_has_no_template(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    assert find_template(tmp_path, **TOKENS) is None
    (tmp_path / "chat_template.json").write_text("[]")
    with pytest.raises(UserError, match=r"chat_template\.json: damaged"):
        find_template(tmp_path, **TOKENS)


@pytest.mark.parity
def test_rendering_equals_transformers(tmp_path: Path) -> None:
    """G4: the template alone gives the training ids in transformers too."""
    transformers = pytest.importorskip("transformers")
    write_tiny_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    template = choose_template(tokenizer)
    (tmp_path / "chat_template.jinja").write_text(template.source)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), **TOKENS
    )
    theirs.chat_template = template.source
    messages = [{"role": m.role, "content": m.content} for m in CHAT]
    ids = theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert encoded(template, CHAT, tokenizer).ids.tolist() == ids
