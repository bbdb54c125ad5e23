"""Loss and perplexity of held-out target tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunesmith.errors import Diverged, UserError

# A model with broken weights or inputs guesses: its loss is near ln(vocabulary) or above. Real
# models stay far below on ordinary text (Gemma 3 270M: about 3 of 12.5), even on unseen formats.
_GUESSING_SHARE = 0.8


@dataclass(frozen=True)
class Perplexity:
    """The mean loss per target token in nats, its exponential, and how many tokens it is over."""

    loss: float
    perplexity: float
    target_tokens: int


def from_loss(loss_sum: float, target_tokens: int) -> Perplexity:
    """The figures from a summed cross-entropy.

    Args:
        loss_sum: the sum over all target tokens, in nats.
        target_tokens: their global count.

    Raises:
        UserError: there are no target tokens.
        Diverged: the sum is not finite.
    """
    if target_tokens <= 0:
        raise UserError(
            "there is nothing to measure: the evaluation data has no target tokens",
            "See which tokens are targets with `tunesmith inspect`.",
        )
    if not math.isfinite(loss_sum):
        raise Diverged(
            f"the evaluation loss over {target_tokens} target tokens is {loss_sum}",
            "Evaluate an earlier checkpoint, or check that the weights are intact.",
        )
    loss = loss_sum / target_tokens
    return Perplexity(loss, math.exp(min(loss, 700.0)), target_tokens)  # exp overflows above 709


def guessing_warning(result: Perplexity, vocabulary_size: int) -> str | None:
    """A warning for the user where the model does no better than guessing, otherwise None.

    Known causes are library versions that load the weights wrongly, such as
    https://github.com/huggingface/transformers/issues/45242.
    """
    guessing = math.log(vocabulary_size)
    if result.loss < _GUESSING_SHARE * guessing:
        return None
    return (
        f"WARNING: a loss of {result.loss:.2f} is what guessing gives "
        f"(ln {vocabulary_size} = {guessing:.2f}). On ordinary text this means that the weights or "
        "the inputs are broken, not that the text is hard: check the model files, the tokenizer "
        "and the versions of the libraries before training on."
    )
