"""Generation with a cache, in batches and with shared beginnings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tiny import write_tiny_gemma3
from tests.tiny_engine import open_tiny, words
from tunesmith.engines.jax import generate
from tunesmith.engines.jax.generate import Generator, batches_of, common_prefix, group
from tunesmith.engines.jax.session import JaxSession, open_session
from tunesmith.errors import UserError
from tunesmith.recipe.schema import Generation

GREEDY = Generation(max_new_tokens=20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma3(tmp_path_factory.mktemp("tiny"), max_position=128)


@pytest.fixture(scope="module")
def session(tiny: Path) -> JaxSession:
    return open_session(tiny, compute_dtype="float32")


@pytest.fixture(scope="module")
def prompts() -> list[np.ndarray]:
    """Of 1 to 16 tokens; the window is 8."""
    rng = np.random.default_rng(0)
    return [words(rng, length) for length in (1, 5, 16, 11)]


@pytest.fixture(scope="module")
def answers(session: JaxSession, prompts: list[np.ndarray]) -> list[list[int]]:
    """What the model says to them if nothing stops it."""
    return ids_of(session, prompts)


def ids_of(session: JaxSession, prompts: Sequence[np.ndarray], **options: Any) -> list[list[int]]:
    found = session.generate(prompts, GREEDY, stop_ids=[], **options)
    return [completion.ids.tolist() for completion in found]


def assert_likeliest(session: JaxSession, prompt: np.ndarray, answer: list[int]) -> None:
    """Each token of the answer is the full forward pass's likeliest one."""
    logits = session.logits(np.concatenate([prompt, answer]).astype(np.int32))
    assert logits.argmax(-1)[len(prompt) - 1 : -1].tolist() == answer


def test_greedy_text_is_the_full_forward_passs(
    session: JaxSession, prompts: list[np.ndarray], answers: list[list[int]]
) -> None:
    """20 tokens past the window, lengths mixed in one batch, one prompt of BOS alone."""
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == 20
        assert_likeliest(session, prompt, answer)
    assert len({tuple(answer) for answer in answers}) == 4


def test_one_by_one_and_in_narrow_batches_the_same(
    session: JaxSession, prompts: list[np.ndarray], answers: list[list[int]]
) -> None:
    told: list[int] = []
    assert ids_of(session, prompts, batch_size=1, progress=told.append) == answers
    assert told == [1, 2, 3, 4]
    assert ids_of(session, prompts[::-1], batch_size=3) == answers[::-1]


def test_shared_beginnings_change_nothing(
    session: JaxSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups of prompts that begin alike, two others between them, all in one batch."""
    rng = np.random.default_rng(1)
    short, long = words(rng, 36), words(rng, 70)
    mixed = [words(rng, 9), words(rng, 14)]
    for number in range(8):
        tail = words(rng, 3 + number)[1:]
        mixed += [np.concatenate([short, tail]), np.concatenate([long, tail])]
    shares: list[int] = []
    prefill = Generator._prefill_group

    def spy(self: Generator, members: list, shared: int, *rest: int) -> Any:
        shares.append(shared)
        return prefill(self, members, shared, *rest)

    monkeypatch.setattr(Generator, "_prefill_group", spy)
    together = ids_of(session, mixed)
    assert sorted(shares) == [0, 32, 64]  # whole multiples of 32 of 36 and 70
    for prompt, answer in zip(mixed, together, strict=True):
        assert_likeliest(session, prompt, answer)


def test_stops_at_its_end_token(
    session: JaxSession, prompts: list[np.ndarray], answers: list[list[int]]
) -> None:
    """G1: the token itself is not part of the answer; each prompt stops by itself."""
    stop = answers[1][3]
    found = session.generate(prompts, GREEDY, stop_ids=[7, stop])
    for completion, answer in zip(found, answers, strict=True):
        length = answer.index(stop) if stop in answer else 20
        assert completion.ids.tolist() == answer[:length]
        assert completion.finished == (stop in answer)
    (empty,) = session.generate(prompts[:1], GREEDY, stop_ids=[answers[0][0]])
    assert (empty.ids.tolist(), empty.finished) == ([], True)


@pytest.mark.parametrize("most", [1, 16, 17])
def test_never_more_than_asked_for(
    session: JaxSession, prompts: list[np.ndarray], answers: list[list[int]], most: int
) -> None:
    """Decoding goes in strides of 16; a stop token beyond the limit is not seen."""
    settings = Generation(max_new_tokens=most)
    found = session.generate(prompts, settings, stop_ids=[])
    assert [completion.ids.tolist() for completion in found] == [a[:most] for a in answers]
    assert not any(completion.finished for completion in found)
    after = answers[2][most]
    if after not in answers[2][:most]:
        completion = session.generate(prompts, settings, stop_ids=[after])[2]
        assert (completion.ids.tolist(), completion.finished) == (answers[2][:most], False)


def test_the_caller_may_end_an_answer(
    session: JaxSession, prompts: list[np.ndarray], answers: list[list[int]]
) -> None:
    asked: dict[int, list[list[int]]] = {}

    def done(index: int, ids: np.ndarray) -> bool:
        asked.setdefault(index, []).append(ids.tolist())
        return index == 1

    found = session.generate(prompts, GREEDY, stop_ids=[], done=done)
    assert [completion.finished for completion in found] == [False, True, False, False]
    assert found[1].ids.tolist() == answers[1][:16]  # the end of the first stride
    assert found[2].ids.tolist() == answers[2]
    for index, calls in asked.items():
        for ids in calls:
            assert ids[:20] == answers[index][: len(ids)]
    assert len(asked[1]) == 1


def test_prompts_that_do_not_fit_are_refused(session: JaxSession) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UserError, match="prompt 2 has 109 tokens; 1 to 108 fit the model together"):
        ids_of(session, [words(rng, 5), words(rng, 109)])
    with pytest.raises(UserError, match="prompt 1 has 0 tokens"):
        ids_of(session, [np.zeros(0, np.int32)])
    (answer,) = ids_of(session, [words(rng, 108)])
    assert len(answer) == 20


def test_no_prompts_no_answers(session: JaxSession) -> None:
    assert session.generate([], GREEDY, stop_ids=[1]) == []


def test_adapters_take_part(tiny: Path, prompts: list[np.ndarray]) -> None:
    """A session in training generates with its adapters beside the frozen weights."""
    session, rng = open_tiny(tiny, lora={"r": 4, "alpha": 8.0, "dropout": 0.5}), None
    rng = np.random.default_rng(0)
    plain = ids_of(session, prompts[1:3])
    session.trainable = {
        name: array + 0.2 * rng.standard_normal(array.shape, dtype=np.float32)
        for name, array in session.trainable.items()
    }
    tuned = ids_of(session, prompts[1:3])
    assert tuned != plain
    for prompt, answer in zip(prompts[1:3], tuned, strict=True):
        assert_likeliest(session, prompt, answer)


def test_the_same_seed_draws_the_same(session: JaxSession, prompts: list[np.ndarray]) -> None:
    def draw(seed: int) -> list[list[int]]:
        settings = Generation(max_new_tokens=8, temperature=1.0, seed=seed)
        found = session.generate(prompts[:2] * 2, settings, stop_ids=[])
        return [completion.ids.tolist() for completion in found]

    first = draw(1)
    assert first == draw(1)
    assert first != draw(2)
    assert first[0] != first[2]  # the same prompt twice: drawn apart


# --- sampling ------------------------------------------------------------------------------------

LOGITS = np.log(np.array([0.4, 0.05, 0.3, 0.15, 0.1], np.float32))


def shares(**settings: Any) -> np.ndarray:
    """How often each of five tokens is drawn in 20,000 trials."""
    logits = jnp.tile(jnp.asarray(LOGITS), (20_000, 1))
    ids = generate._sample(logits, Generation(**settings), jax.random.key(0))
    assert ids.dtype == jnp.int32
    return np.bincount(np.asarray(ids), minlength=5) / 20_000


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.0, "top_k": 3}, [1, 0, 0, 0, 0]),
        ({"temperature": 1.0}, [0.4, 0.05, 0.3, 0.15, 0.1]),
        # Squares of the shares, over their sum of 0.285.
        ({"temperature": 0.5}, [0.5614, 0.0088, 0.3158, 0.0789, 0.0351]),
        ({"temperature": 1.0, "top_k": 1}, [1, 0, 0, 0, 0]),
        ({"temperature": 1.0, "top_k": 2}, [4 / 7, 0, 3 / 7, 0, 0]),
        ({"temperature": 1.0, "top_k": 99}, [0.4, 0.05, 0.3, 0.15, 0.1]),
        ({"temperature": 1.0, "top_p": 0.1}, [1, 0, 0, 0, 0]),
        # 0.4 + 0.3 do not reach 0.75; the token that passes it belongs to the set.
        ({"temperature": 1.0, "top_p": 0.75}, [0.4 / 0.85, 0, 0.3 / 0.85, 0.15 / 0.85, 0]),
        # Of the two likeliest the first has 4/7 = 0.57, which already passes.
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.5}, [1, 0, 0, 0, 0]),
        # With temperature first, its 0.56 passes 0.5; without, 0.4 would not.
        ({"temperature": 0.5, "top_p": 0.5}, [1, 0, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.9999999}, [0.4, 0.05, 0.3, 0.15, 0.1]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_should(
    settings: dict[str, Any], expected: list[float]
) -> None:
    found = shares(**settings)
    np.testing.assert_allclose(found, expected, atol=0.015)  # four standard deviations
    np.testing.assert_array_equal(found > 0, np.array(expected) > 0)


# --- grouping ------------------------------------------------------------------------------------


def prompt(*parts: int) -> np.ndarray:
    """Tokens in runs: (3, 40) is 40 times token 3."""
    return np.repeat(np.array(parts[::2]), parts[1::2]).astype(np.int32)


def test_common_prefix() -> None:
    a, b = prompt(3, 5, 4, 5), prompt(3, 5, 7, 5)
    assert common_prefix([a, b]) == 5
    assert common_prefix([a, a]) == 9  # a last token stays for each to run
    assert common_prefix([a]) == 9
    assert common_prefix([a, a[:3]]) == 2
    assert common_prefix([a, a[:1]]) == 0


def test_groups_hold_every_prompt_once_and_those_that_begin_alike_together() -> None:
    rng = np.random.default_rng(0)
    first = [np.append(prompt(3, 40), rng.integers(5, 9)).astype(np.int32) for _ in range(20)]
    second = [np.append(prompt(4, 90), rng.integers(5, 9)).astype(np.int32) for _ in range(10)]
    others = [prompt(10 + i, 6) for i in range(3)]
    mixed = [*first, *second, *others]
    order = rng.permutation(len(mixed))
    found = group([mixed[i] for i in order], 16)
    assert sorted(index for members in found for index in members) == list(range(33))
    kinds = [{"aaabbc"[int(order[i]) // 10 * 2] for i in members} for members in found[:-1]]
    assert kinds == [{"a"}, {"b"}]
    assert len(found[0]) == 16
    # Four are left of the first kind, too few for a program of their own.
    assert sorted(order[i] for i in found[-1])[4:] == [30, 31, 32]


def test_batches_are_filled_with_whole_groups() -> None:
    groups = [list(range(16)), list(range(16, 24)), list(range(24, 40)), [40]]
    assert [list(map(len, batch)) for batch in batches_of(groups, 32)] == [[16, 8], [16, 1]]
    assert [list(map(len, batch)) for batch in batches_of(groups, 16)] == [[16], [8], [16], [1]]
    assert batches_of([], 8) == []
