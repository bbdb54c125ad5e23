"""The same prompt answered before and after training, for people to read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """One prompt and what the model made of it.

    Attributes:
        prompt: as the recipe gives it.
        before: the answer of the model before training.
        after: the answer after training; None until then.
    """

    prompt: str
    before: str
    after: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object; `Sample(**object)` reads it back."""
        return asdict(self)
