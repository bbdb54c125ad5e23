"""What every part of a recipe is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class BrokenRules(ValueError):
    """Rules that bind several fields, told together.

    Args:
        rules: for each broken one, the dotted path of the field to look at, from the section that
            raises, and what is wrong.
    """

    def __init__(self, rules: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in rules))
        self.rules = rules


class Section(BaseModel):
    """Base of all parts of a recipe: unknown keys are errors, values are never coerced."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )
