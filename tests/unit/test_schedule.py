"""The learning rate as a function of the step."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith.engines.schedule import learning_rate, warmup_steps
from tunesmith.recipe.schema import TrainSection


def rates(steps: int, **train: Any) -> list[float]:
    section = TrainSection(learning_rate=0.8, **train)
    return [learning_rate(section, step, steps) for step in range(steps)]


def test_constant_stays() -> None:
    assert rates(3, schedule="constant") == [0.8, 0.8, 0.8]


def test_constant_really_warms_up() -> None:
    """A known trap: transformers' `constant` ignores warm-up."""
    assert rates(6, schedule="constant", warmup_steps=4) == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]
    )


def test_linear_falls_to_zero_behind_the_last_step() -> None:
    assert rates(4, schedule="linear") == pytest.approx([0.8, 0.6, 0.4, 0.2])
    assert rates(6, schedule="linear", warmup_steps=2) == pytest.approx(
        [0.4, 0.8, 0.8, 0.6, 0.4, 0.2]
    )


def test_cosine_is_half_way_down_in_the_middle() -> None:
    found = rates(8, schedule="cosine")
    assert found[0] == 0.8
    assert found[4] == pytest.approx(0.4)
    assert found[2] == pytest.approx(0.8 * 0.8535533905932737)  # (1 + cos 45°) / 2
    assert found == sorted(found, reverse=True)
    assert 0 < found[-1] < 0.04


def test_nothing_is_left_at_the_end() -> None:
    section = TrainSection(learning_rate=0.8, schedule="cosine", warmup_steps=2)
    assert learning_rate(section, 10, 10) == 0.0


def test_the_first_step_already_moves() -> None:
    assert rates(100, warmup_steps=100)[0] == pytest.approx(0.008)
    assert rates(100, warmup_steps=100)[-1] == pytest.approx(0.8)


def test_warmup_longer_than_the_run() -> None:
    assert rates(2, warmup_steps=4) == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, 0),
        ({"warmup_ratio": 0.03}, 4),  # 3.03 rounded up: never less than asked for
        ({"warmup_ratio": 0.1}, 11),
        ({"warmup_ratio": 0.1, "warmup_steps": 5}, 5),
        ({"warmup_ratio": 0.1, "warmup_steps": 0}, 0),
    ],
)
def test_warmup_as_a_share_or_outright(settings: dict[str, Any], steps: int) -> None:
    assert warmup_steps(TrainSection(learning_rate=0.8, **settings), 101) == steps
