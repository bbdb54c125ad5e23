"""Answers from the weights, through transformers' `generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from tunesmith.engines.contract import Completion
from tunesmith.recipe.schema import Generation

PAD = 0
# `done` decodes text: asked at each token it would cost as much as the model.
_ASK_EVERY = 4

Done = Callable[[int, np.ndarray], bool]


def answer(
    model: Any,
    accelerator: Accelerator,
    prompts: Sequence[np.ndarray],
    settings: Generation,
    *,
    stop_ids: Sequence[int],
    batch_size: int,
    done: Done | None,
    progress: Callable[[int], None] | None,
) -> list[Completion]:
    """Continue each prompt; see `engines.contract.Session.generate`.

    Every process answers its share, all with the same number of batches, for sharded weights are
    gathered by all processes together; each gets all answers.
    """
    count, rank = accelerator.num_processes, accelerator.process_index
    # Long prompts together: less of a batch is padding.
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    mine = order[rank::count]
    batches = -(-len(order) // (count * batch_size))
    answers: dict[int, Completion] = {}
    for number in range(batches):
        chosen = mine[number * batch_size : (number + 1) * batch_size]
        # A process that has run out keeps the others company with a prompt that is known.
        made = _batch(model, accelerator, prompts, chosen or order[:1], settings, stop_ids, done)
        answers |= {index: made[index] for index in chosen}
        if progress:
            progress(min(len(order), (number + 1) * batch_size * count))
    if count > 1:
        shares: Any = gather_object([answers])
        answers = {index: answer for share in shares for index, answer in share.items()}
    return [answers[index] for index in range(len(prompts))]


@torch.no_grad()
def _batch(
    model: Any,
    accelerator: Accelerator,
    prompts: Sequence[np.ndarray],
    chosen: Sequence[int],
    settings: Generation,
    stop_ids: Sequence[int],
    done: Done | None,
) -> dict[int, Completion]:
    longest = max(len(prompts[index]) for index in chosen)
    ids = torch.full((len(chosen), longest), PAD)
    mask = torch.zeros_like(ids)
    for row, index in enumerate(chosen):  # padded in front, so that all answers begin together
        ids[row, longest - len(prompts[index]) :] = torch.from_numpy(
            prompts[index].astype(np.int64)
        )
        mask[row, longest - len(prompts[index]) :] = 1
    ends = _Ends(chosen, longest, done)
    torch.manual_seed(settings.seed)
    made = model.generate(
        input_ids=ids.to(accelerator.device),
        attention_mask=mask.to(accelerator.device),
        generation_config=_config(settings, stop_ids),
        stopping_criteria=StoppingCriteriaList([ends] if done else []),
        synced_gpus=accelerator.num_processes > 1,
        use_cache=True,
    )
    new = made[:, longest:].cpu().numpy().astype(np.int32)
    return {
        index: _completion(new[row], stop_ids, ends.length.get(row))
        for row, index in enumerate(chosen)
    }


def _config(settings: Generation, stop_ids: Sequence[int]) -> GenerationConfig:
    sampling: dict[str, Any] = {"do_sample": False}
    if settings.temperature > 0:
        sampling = {
            "do_sample": True,
            "temperature": settings.temperature,
            "top_k": settings.top_k or 0,
            "top_p": settings.top_p,
        }
    return GenerationConfig(
        max_new_tokens=settings.max_new_tokens,
        eos_token_id=list(stop_ids),
        pad_token_id=PAD,
        **sampling,
    )


def _completion(ids: np.ndarray, stop_ids: Sequence[int], length: int | None) -> Completion:
    """An answer up to where it ended: at a token that ends it, or where `done` said so."""
    stops = np.flatnonzero(np.isin(ids, stop_ids))
    stop = int(stops[0]) if len(stops) else None
    if length is not None and (stop is None or length <= stop):
        return Completion(ids[:length], finished=True)
    return Completion(ids[:stop], finished=stop is not None)


class _Ends(StoppingCriteria):
    """Ends the rows of a batch of which `done` says so.

    Attributes:
        length: new tokens of each row that it ended.
    """

    def __init__(self, chosen: Sequence[int], start: int, done: Done | None) -> None:
        self._chosen, self._start, self._done = chosen, start, done
        self.length: dict[int, int] = {}

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        made = input_ids.shape[1] - self._start
        if self._done and made % _ASK_EVERY == 0:
            new = input_ids[:, self._start :].cpu().numpy().astype(np.int32)
            for row, index in enumerate(self._chosen):
                if row not in self.length and self._done(index, new[row]):
                    self.length[row] = made
        ended = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        for row in self.length:
            ended[row] = True
        return ended
