"""The learning rate, as a function of the step: the same figures for every engine."""

from __future__ import annotations

import math

from tunesmith.recipe.schema import TrainSection


def warmup_steps(train: TrainSection, total_steps: int) -> int:
    """Steps of warm-up: given outright, else the given share of all steps, rounded up."""
    if train.warmup_steps is not None:
        return train.warmup_steps
    return math.ceil(train.warmup_ratio * total_steps)


def learning_rate(train: TrainSection, step: int, total_steps: int) -> float:
    """Learning rate of the step with this number, counted from 0.

    It rises in equal parts to the peak over the warm-up, with every schedule, `constant` included,
    so that the very first step already moves; then it stays or falls to zero at `total_steps`.
    """
    warmup = warmup_steps(train, total_steps)
    if step < warmup:
        return train.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, total_steps - warmup)
    match train.schedule:
        case "constant":
            factor = 1.0
        case "linear":
            factor = 1.0 - progress
        case "cosine":
            factor = 0.5 * (1.0 + math.cos(math.pi * progress))
    return train.learning_rate * max(0.0, factor)
