"""Gemma 4's chat templates. G numbers: known ways to go wrong."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.tiny import write_tiny_tokenizer
from tests.tiny_gemma4 import CONTROL
from tunesmith.data.chat import (
    ChatTemplate,
    Message,
    choose_template,
    own_template,
    render_with_targets,
)
from tunesmith.data.encode import encode_examples, prompt_of
from tunesmith.data.formats import Example, Segment
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import Encoded, Row, Where
from tunesmith.errors import UserError
from tunesmith.recipe.catalog import shipped_text
from tunesmith.recipe.load import parse_recipe

TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
# What the templates of google/gemma-4-E2B-it and E4B-it write for plain turns, thinking off.
SMALL = (
    "{{ bos_token }}{% for m in messages %}"
    "<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
# Those of 12B-it, 26B-A4B-it and 31B-it differ in the prompt alone, not in earlier turns.
EMPTY_THOUGHT = "<|channel>thought\n<channel|>"
LARGE = SMALL.replace("<|turn>model\n{% endif", f"<|turn>model\n{EMPTY_THOUGHT}{{% endif")
CHAT = [
    Message("system", "Be brief. "),
    Message("user", " Hi \n"),
    Message("assistant", "\nHello "),
    Message("user", "Bye"),
    Message("assistant", "See you"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma4")
    write_tiny_tokenizer(path, control=CONTROL)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(directory)


def with_template(directory: Path, tmp_path: Path, source: str) -> Tokenizer:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(source, encoding="utf-8")
    return Tokenizer.load(tmp_path)


def encoded(template: ChatTemplate, messages: list[Message], tokenizer: Tokenizer) -> Encoded:
    text, targets = render_with_targets(template, messages, tokenizer)
    example = Example((Segment(text, targets),), False, Row({}, Where("x", 1)))
    (result,) = encode_examples([example], tokenizer)
    assert isinstance(result, Encoded)
    return result


def trained(result: Encoded, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(result.ids[result.target], skip_special=False)


def test_template_whose_prompt_is_the_prefix_of_training_text_passes(
    directory: Path, tmp_path: Path
) -> None:
    """G1, G5, G7: the smaller models' own template is taken; turn ends (106) are trained."""
    tokenizer = with_template(directory, tmp_path, SMALL)
    template = choose_template(tokenizer)
    assert template.source == SMALL
    result = encoded(template, CHAT, tokenizer)
    assert trained(result, tokenizer) == "Hello<turn|>See you<turn|>"
    assert result.ids[result.target].tolist().count(106) == 2
    assert (result.ids == 2).sum() == 1


def test_empty_thought_in_the_prompt_alone_is_refused_and_the_way_out_named(
    directory: Path, tmp_path: Path
) -> None:
    """G5: the larger models' own template asks behind a thought channel that its turns lack."""
    tokenizer = with_template(directory, tmp_path, LARGE)
    with pytest.raises(UserError, match="is no prefix of the conversation with the answer") as told:
        choose_template(tokenizer)
    assert "<|channel>thought" in str(told.value)
    assert "`data.chat_template: gemma4`" in told.value.hint
    assert choose_template(tokenizer, "gemma4").name == "gemma4.jinja"


def test_gemma4_asks_as_the_larger_models_own_template_does(tokenizer: Tokenizer) -> None:
    own = ChatTemplate(LARGE, "own", **TOKENS)
    ours = choose_template(tokenizer, "gemma4")
    for turns in (CHAT[:2], CHAT[1:2]):
        asked = ours.render(turns, add_generation_prompt=True)
        assert asked == own.render(turns, add_generation_prompt=True)


def test_gemma4_trains_answers_behind_the_prompt_that_is_asked(tokenizer: Tokenizer) -> None:
    """G5, G7: the empty channel stands before each answer and is no target."""
    template = choose_template(tokenizer, "gemma4")
    assert template.render(CHAT) == (
        "<bos><|turn>system\nBe brief.<turn|>\n"
        f"<|turn>user\nHi<turn|>\n<|turn>model\n{EMPTY_THOUGHT}Hello<turn|>\n"
        f"<|turn>user\nBye<turn|>\n<|turn>model\n{EMPTY_THOUGHT}See you<turn|>\n"
    )
    result = encoded(template, CHAT, tokenizer)
    assert trained(result, tokenizer) == "Hello<turn|>See you<turn|>"
    asked = tokenizer.encode(template.render(CHAT[:-1], add_generation_prompt=True))
    assert prompt_of(result).tolist() == asked
    assert asked[-4:] == tokenizer.encode(EMPTY_THOUGHT)[-4:]


def test_base_model_of_gemma4_gets_gemma4s_turns(tokenizer: Tokenizer) -> None:
    assert choose_template(tokenizer).name == "gemma4.jinja"


def test_gemma4_reads_content_in_parts(tokenizer: Tokenizer) -> None:
    """An export carries it, and multimodal models are asked in parts."""
    parts = [{"type": "text", "text": " What is this? "}, {"type": "image"}]
    template = choose_template(tokenizer, "gemma4")
    asked = template.render([Message("user", parts)])  # type: ignore[arg-type]
    assert asked == "<bos><|turn>user\nWhat is this?<|image|><turn|>\n"


@pytest.mark.parametrize("turns", [CHAT[2:], [CHAT[1], CHAT[1]], [CHAT[0], CHAT[2]]])
def test_gemma4_refuses_turns_out_of_order(tokenizer: Tokenizer, turns: list[Message]) -> None:
    """G3."""
    with pytest.raises(Exception, match="must take turns"):
        choose_template(tokenizer, "gemma4").render(turns)


def test_built_in_template_of_another_family_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="gemma3: the tokenizer has no token <start_of_turn>"):
        choose_template(tokenizer, "gemma3")


def test_name_that_is_neither_built_in_nor_a_file_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="gemma5: cannot be read") as told:
        choose_template(tokenizer, "gemma5")
    assert told.value.hint == "`data.chat_template` is a file, or one of gemma3, gemma4."


def test_model_can_be_asked_with_a_template_that_cannot_be_trained_with(
    directory: Path, tmp_path: Path
) -> None:
    """`tunesmith generate google/gemma-4-31B-it`."""
    template = own_template(with_template(directory, tmp_path, LARGE))
    assert template is not None
    asked = template.render(CHAT[:2], add_generation_prompt=True)
    assert asked.endswith(f"<|turn>model\n{EMPTY_THOUGHT}")
    with pytest.raises(UserError, match="refuses it: no"):
        own_template(with_template(directory, tmp_path, "{{ raise_exception('no') }}"))


def test_shipped_recipe_of_the_31b_trains_behind_the_empty_channel(tokenizer: Tokenizer) -> None:
    recipe = parse_recipe(shipped_text("text-to-sql-gemma4-31b"), "31b")
    assert choose_template(tokenizer, recipe.data.chat_template).name == "gemma4.jinja"


PUBLISHED = ("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5")


@pytest.mark.parity
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates(directory: Path, tmp_path: Path, name: str) -> None:
    """TRL carries those of google/gemma-4-E2B-it; 31B's is its newest one with the channel added.

    (The template of google/gemma-4-31B-it of 2026-07-09 has SHA-256 ae53464b…; it differs from the
    E2B's of that day in these lines and one blank line.)
    """
    found = importlib.util.find_spec("trl")
    if found is None or not found.submodule_search_locations:
        pytest.skip("TRL is not installed")
    folder = Path(found.submodule_search_locations[0], "chat_templates")
    source = (folder / f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer = with_template(directory, tmp_path, source)
    small = ChatTemplate(SMALL, "small", **TOKENS)
    assert choose_template(tokenizer).render(CHAT) == small.render(CHAT)

    opening = "{{- '<|turn>model\\n' -}}"
    assert source.count(opening) == 1
    channel = "{%- if not enable_thinking -%}{{- '<|channel>thought\\n<channel|>' -}}{%- endif -%}"
    tokenizer = with_template(directory, tmp_path, source.replace(opening, opening + channel))
    with pytest.raises(UserError, match="is no prefix") as told:
        choose_template(tokenizer)
    assert "`data.chat_template: gemma4`" in told.value.hint


@pytest.mark.parity
def test_gemma4_renders_the_same_in_transformers(directory: Path, tokenizer: Tokenizer) -> None:
    """G4: the template alone, as an export carries it, gives the training ids."""
    transformers = pytest.importorskip("transformers")
    template = choose_template(tokenizer, "gemma4")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"), **TOKENS
    )
    theirs.chat_template = template.source
    messages = [{"role": m.role, "content": m.content} for m in CHAT]
    ids = theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert encoded(template, CHAT, tokenizer).ids.tolist() == ids
