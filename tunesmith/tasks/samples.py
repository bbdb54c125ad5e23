"""The same prompts answered before and after training, for people to read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

# Prompts in, one answer each out; the engine brings it.
Generate = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True)
class Sample:
    """One prompt and what the model made of it.

    Attributes:
        prompt: as given to the model.
        before: the answer of the model before training.
        after: the answer after training; None until then.
        reference: the right answer, where the data has one.
    """

    prompt: str
    before: str
    after: str | None = None
    reference: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object; `Sample(**object)` reads it back."""
        return asdict(self)


def sample_before(
    prompts: Sequence[str], generate: Generate, references: Sequence[str] | None = None
) -> list[Sample]:
    """Answer the prompts with the untrained model."""
    rights = references if references is not None else [None] * len(prompts)
    return [
        Sample(prompt, answer, reference=right)
        for prompt, answer, right in zip(prompts, generate(prompts), rights, strict=True)
    ]


def sample_after(samples: Sequence[Sample], generate: Generate) -> list[Sample]:
    """Answer the same prompts again; the answers before are kept."""
    answers = generate([sample.prompt for sample in samples])
    return [replace(sample, after=answer) for sample, answer in zip(samples, answers, strict=True)]
