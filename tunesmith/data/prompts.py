"""What a model is given to answer: ids of a text or of a conversation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunesmith.data.chat import ChatTemplate, Message
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.recipe.schema import Rows


def opening(rows: Rows) -> list[Message]:
    """What stands before every conversation of the training rows: the template's system message."""
    system = rows.template and rows.template.system
    return [Message("system", system)] if system else []


def prompt_ids(
    text: str,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    history: Sequence[Message] = (),
) -> np.ndarray:
    """Ids [T] of a prompt, BOS at the front.

    Args:
        text: what the user says, or where there is no template the text to be continued.
        tokenizer: the model's.
        template: of conversations; opens the next answer.
        history: earlier turns of the conversation.

    Raises:
        TemplateMismatch: the template refuses the conversation.
    """
    if template is not None:
        turns = [*history, Message("user", text)]
        text = template.render(turns, add_generation_prompt=True)
    ids = tokenizer.encode(text)
    if ids[:1] != [tokenizer.bos_id]:
        ids = [tokenizer.bos_id, *ids]
    return np.array(ids, np.int32)
