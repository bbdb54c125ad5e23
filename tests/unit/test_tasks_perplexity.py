from __future__ import annotations

import math

import pytest

from tunesmith.errors import Diverged, UserError
from tunesmith.tasks.perplexity import from_loss, guessing_warning


def test_loss_is_the_mean_over_target_tokens() -> None:
    result = from_loss(6.0, 4)
    assert result.loss == 1.5
    assert result.perplexity == pytest.approx(4.4816890703)
    assert result.target_tokens == 4


def test_no_target_tokens_is_a_user_error() -> None:
    with pytest.raises(UserError, match="no target tokens"):
        from_loss(0.0, 0)


@pytest.mark.parametrize("loss_sum", [math.nan, math.inf])
def test_loss_that_is_not_finite_is_divergence(loss_sum: float) -> None:
    with pytest.raises(Diverged, match="over 3 target tokens"):
        from_loss(loss_sum, 3)


def test_absurd_loss_still_gives_a_finite_perplexity() -> None:
    assert math.isfinite(from_loss(1e6, 1).perplexity)


@pytest.mark.parametrize(("loss", "warned"), [(2.9, False), (7.5, False), (12.5, True), (30, True)])
def test_loss_near_that_of_guessing_warns_loudly(loss: float, warned: bool) -> None:
    """G15: a first loss near ln(262144) = 12.5 on ordinary text means broken weights."""
    warning = guessing_warning(from_loss(loss * 10, 10), 262144)
    assert (warning is not None) is warned
    if warning is not None:
        assert warning.startswith("WARNING: ")
        assert "ln 262144 = 12.48" in warning
