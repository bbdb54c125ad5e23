"""Chat templates: a conversation as one text, and which part of it the model is to learn.

A model learns each answer and the token that ends the turn, nothing else. Where those stand is not
guessed from markers: the conversation up to an answer is rendered as for generation, and must be an
exact prefix of the whole. So what is trained is what the model meets when it is asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tunesmith.errors import UserError

if TYPE_CHECKING:
    import jinja2

    from tunesmith.data.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Message:
    """One turn; `role` is system, user or assistant."""

    role: str
    content: str


# Templates that come with this package, and the token by which a tokenizer shows that it fits.
BUILT_IN = {"gemma3": "<start_of_turn>", "gemma4": "<|turn>"}

# The conversation on which templates are tried out.
_TRIED = (Message("user", "One, two?"), Message("assistant", "Three, four."))


class TemplateMismatch(Exception):
    """The template does not let the trained part of a conversation be told from the rest."""


class ChatTemplate:
    """A Jinja chat template as Hugging Face models carry it.

    Args:
        source: the Jinja text. Whatever it holds runs in a sandbox without access to Python.
        name: where it came from, for messages.
        bos_token, eos_token: the tokens' texts, which templates use.

    Raises:
        UserError: the text is not valid Jinja.
    """

    def __init__(self, source: str, name: str, *, bos_token: str, eos_token: str) -> None:
        import jinja2

        self.source = source
        self.name = name
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(
                f"chat template {name}, line {error.lineno}: {error.message}",
                "It must be Jinja as Hugging Face models use it.",
            ) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """The conversation as text, BOS included if the template writes it.

        Args:
            messages: the turns.
            add_generation_prompt: whether the opening of the next answer follows.

        Raises:
            TemplateMismatch: the template refuses this conversation.
        """
        try:
            return self._template.render(
                messages=[
                    {"role": message.role, "content": message.content} for message in messages
                ],
                add_generation_prompt=add_generation_prompt,
                tools=None,  # many templates ask `tools is not none`
                documents=None,
                **self._tokens,
            )
        except Exception as error:  # a template's code may raise anything
            raise TemplateMismatch(f"chat template {self.name} refuses it: {error}") from error


def load_template(path: Path, *, bos_token: str, eos_token: str) -> ChatTemplate:
    """A template from a Jinja file.

    Raises:
        UserError: the file is missing or not Jinja.
    """
    try:
        source = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"chat template {path}: cannot be read: {error}",
            f"`data.chat_template` is a file, or one of {', '.join(BUILT_IN)}.",
        ) from error
    return ChatTemplate(source, path.name, bos_token=bos_token, eos_token=eos_token)


def find_template(model_dir: Path, *, bos_token: str, eos_token: str) -> ChatTemplate | None:
    """The template in a model's directory, or None: base models have none.

    It stands in chat_template.jinja, or under `chat_template` in chat_template.json (multimodal
    models) or tokenizer_config.json, there as a text or as a list of named texts.

    Raises:
        UserError: a file is damaged.
    """
    if (path := model_dir / "chat_template.jinja").exists():
        return load_template(path, bos_token=bos_token, eos_token=eos_token)
    for path in (model_dir / "chat_template.json", model_dir / "tokenizer_config.json"):
        if not path.exists():
            continue
        try:
            source = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        except (ValueError, AttributeError) as error:
            raise UserError(f"{path}: damaged: {error}", "Fetch the model again.") from error
        if isinstance(source, list):
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("default") or next(iter(named.values()), None)
        if source:
            return ChatTemplate(source, path.name, bos_token=bos_token, eos_token=eos_token)
    return None


def choose_template(
    tokenizer: Tokenizer, wanted: str | Path | None = None, base_dir: Path = Path()
) -> ChatTemplate:
    """The template of a run: the one wanted, else the model's own, else its family's; tried out.

    Args:
        tokenizer: the model's.
        wanted: `data.chat_template`: a name of `BUILT_IN`, or a file.
        base_dir: what a relative path starts from.

    Raises:
        UserError: the file is missing or damaged, the tokenizer lacks the template's tokens, or the
            template does not let the trained part be told from the rest.
    """
    tokens = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    fitting = [name for name, turn in BUILT_IN.items() if turn in tokenizer.special_tokens]
    if isinstance(wanted, str) and wanted in BUILT_IN:
        if wanted not in fitting:
            raise UserError(
                f"chat template {wanted}: the tokenizer has no token {BUILT_IN[wanted]}",
                "`data.chat_template` must fit the model; absent, the model's own is taken.",
            )
        template = _built_in(wanted, tokens)
    elif wanted is not None:
        template = load_template(base_dir / Path(wanted).expanduser(), **tokens)
    elif tokenizer.chat_template is not None:
        template = tokenizer.chat_template
    elif fitting:
        template = _built_in(fitting[0], tokens)
    else:
        raise UserError(
            "the model has no chat template, and its tokenizer lacks Gemma's turn tokens",
            "Give a Jinja file as `data.chat_template`, or use `format: prompt_completion`.",
        )
    try:
        _try_out(template, tokenizer)
    except TemplateMismatch as mismatch:
        same = [name for name in fitting if _ask_alike(template, _built_in(name, tokens))]
        raise UserError(
            f"the chat template cannot be trained with: {mismatch}",
            f"Set `data.chat_template: {same[0]}`: it asks the model in the same way, and has the "
            "same in front of trained answers."
            if same
            else "Give another Jinja file as `data.chat_template`.",
        ) from mismatch
    return template


def own_template(tokenizer: Tokenizer) -> ChatTemplate | None:
    """The model's own template, to ask it with: whether it could be trained with does not matter.

    Raises:
        UserError: the template refuses a plain question.
    """
    template = tokenizer.chat_template
    if template is not None:
        try:
            template.render(_TRIED[:1], add_generation_prompt=True)
        except TemplateMismatch as mismatch:
            raise UserError(str(mismatch), "`--plain` continues text without it.") from mismatch
    return template


def _built_in(name: str, tokens: dict[str, str]) -> ChatTemplate:
    file = f"{name}.jinja"
    source = resources.files("tunesmith.data").joinpath(file).read_text("utf-8")
    return ChatTemplate(source, file, **tokens)


def _ask_alike(one: ChatTemplate, other: ChatTemplate) -> bool:
    """Whether two templates put the same question to a model."""
    try:
        return one.render(_TRIED[:1], add_generation_prompt=True) == other.render(
            _TRIED[:1], add_generation_prompt=True
        )
    except TemplateMismatch:
        return False


def render_with_targets(
    template: ChatTemplate, messages: Sequence[Message], tokenizer: Tokenizer
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Renders a conversation that ends with an answer.

    Returns:
        The text without BOS, and for each answer the span (begin, end) in characters of the answer
        and the token that ends its turn.

    Raises:
        TemplateMismatch: a span cannot be told for certain.
    """
    whole = template.render(messages).removeprefix(tokenizer.bos_token)
    if tokenizer.bos_token in whole:
        raise TemplateMismatch(f"{template.name} writes {tokenizer.bos_token} more than once")
    targets = []
    for at, message in enumerate(messages):
        if message.role != "assistant":
            continue
        prompt = template.render(messages[:at], add_generation_prompt=True)
        prompt = prompt.removeprefix(tokenizer.bos_token)
        if not whole.startswith(prompt):
            raise TemplateMismatch(
                f"{template.name}: the prompt before an answer, …{prompt[-60:]!r}, is no prefix "
                "of the conversation with the answer"
            )
        end = _turn_end(whole, len(prompt), tokenizer)
        if end is None:
            raise TemplateMismatch(
                f"{template.name} puts none of {', '.join(tokenizer.stop_tokens)} behind answers, "
                "so a model would not learn to stop"
            )
        answer = whole[len(prompt) : end[0]]
        if answer.strip() != message.content.strip():
            raise TemplateMismatch(f"{template.name} turns an answer into {answer[:60]!r}")
        targets.append((len(prompt), end[1]))
    return whole, tuple(targets)


def _turn_end(text: str, begin: int, tokenizer: Tokenizer) -> tuple[int, int] | None:
    """Where the first token that ends a turn stands, from `begin` on."""
    found = [
        (at, at + len(token))
        for token in tokenizer.stop_tokens
        if (at := text.find(token, begin)) >= 0
    ]
    return min(found, default=None)


def _try_out(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """Checks on a plain conversation that characters and tokens tell the prompt from the answer.

    Raises:
        TemplateMismatch: they do not.
    """
    text, ((begin, end),) = render_with_targets(template, _TRIED, tokenizer)
    prompt, upto_end = tokenizer.encode(text[:begin]), tokenizer.encode(text[:end])
    whole = tokenizer.encode(text)
    if whole[: len(prompt)] != prompt or whole[: len(upto_end)] != upto_end:
        raise TemplateMismatch(
            f"{template.name}: the prompt's tokens are no prefix of those with the answer"
        )


def _environment() -> jinja2.Environment:
    """The environment for which Hugging Face templates are written, as transformers has it."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
