"""The JAX engine against transformers: logits, gradients, optimizer steps, greedy text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import write_tiny_gemma3
from tests.tiny_engine import (
    Gradients,
    Stepper,
    batch_of,
    largest_gap,
    open_tiny,
    tiny_recipe,
    unstacked,
    words,
)
from tunesmith.data.types import Batch
from tunesmith.engines.jax.session import JaxSession, open_session
from tunesmith.engines.jax.step import make_loss, place_batch
from tunesmith.models.weights import module_path
from tunesmith.recipe.schema import Generation

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "linear rope and scale": {"rope_scale": 8.0, "query_pre_attn_scalar": 40, "kv_heads": 1},
    "multimodal": {"prefix": "language_model.model.", "rope_scale": 8.0},
}


def transformers_model(directory: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def transformers_loss(model: Any, batch: Batch) -> Any:
    """Summed loss, each segment run by itself: what packing must equal."""
    total = torch.zeros(())
    for b in range(len(batch.tokens)):
        for number in range(1, int(batch.segment_ids[b].max()) + 1):
            here = batch.segment_ids[b] == number
            ids, mask = torch.tensor(batch.tokens[b, here])[None], batch.target_mask[b, here]
            logits = model(input_ids=ids.long()).logits[0][torch.tensor(mask)]
            wanted = torch.tensor(batch.targets[b, here][mask]).long()
            total = total + torch.nn.functional.cross_entropy(logits, wanted, reduction="sum")
    return total


def transformers_weights(session: JaxSession, model: Any, *, gradients: bool) -> dict[str, Any]:
    """A transformers model's weights or gradients by our names, of layers one by one."""
    config, named = session.program.config, dict(model.named_parameters())
    found = {}
    for name, _ in unstacked(session, {n: np.asarray(a) for n, a in session.trainable.items()}):
        tensor = named[module_path(config, name) + ".weight"]
        found[name] = (tensor.grad if gradients else tensor.detach()).numpy()
    return found


def some_batch(rng: np.random.Generator) -> Batch:
    """Segments below and above the window of 8, packed and padded, prompts not trained."""
    lengths = ([20, 9], [5, 3, 12], [30])
    rows = [[words(rng, length) for length in row] for row in lengths]
    return batch_of(*rows, length=32, prompt=2)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_first_gradients_equal_transformers(variant: str, tmp_path: Path) -> None:
    """G33; a packed batch against its segments one by one (G11)."""
    directory = write_tiny_gemma3(tmp_path, **VARIANTS[variant])
    session, model = open_tiny(directory), transformers_model(directory)
    rng = np.random.default_rng(1)

    ids = words(rng, 70)
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(ids).long()[None]).logits[0].numpy()
    assert expected.std() > 0.5  # logits that say something
    np.testing.assert_allclose(session.logits(ids), expected, atol=2e-5, rtol=0)

    batch = some_batch(rng)
    loss, gradients = Gradients(session)(batch)
    theirs = transformers_loss(model, batch)
    theirs.backward()
    assert loss == pytest.approx(theirs.item(), rel=1e-6)
    expected = transformers_weights(session, model, gradients=True)
    assert min(np.abs(gradient).max() for gradient in expected.values()) > 1e-3  # all take part
    assert largest_gap(dict(unstacked(session, gradients)), expected) < 1e-4


def test_adamw_steps_equal_torch(tmp_path: Path) -> None:
    """Three steps, clipped (norms are about 3), with decay on matrices alone.

    Epsilon is large, so that clipping shows (Adam alone divides it out) and rounding does not.
    """
    directory = write_tiny_gemma3(tmp_path)
    adam = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.1}
    train = {"learning_rate": 1e-2, "optimizer": adam, "max_grad_norm": 0.5}
    recipe = tiny_recipe(directory, train=train)
    session, model = open_tiny(directory, train=train), transformers_model(directory)
    take = Stepper(session, recipe)
    sides: dict[bool, list[Any]] = {True: [], False: []}
    for parameter in model.parameters():
        sides[parameter.ndim > 1].append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": sides[True], "weight_decay": 0.1},
            {"params": sides[False], "weight_decay": 0},
        ],
        lr=1e-2,
        betas=(0.8, 0.95),
        eps=1e-3,
    )
    rng = np.random.default_rng(2)
    for rate in (1e-2, 5e-3, 1e-2):
        batch = some_batch(rng)
        result = take(batch, rate=rate)
        optimizer.zero_grad()
        loss = transformers_loss(model, batch) / int(batch.target_mask.sum())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        assert float(result.loss) == pytest.approx(loss.item(), rel=1e-5)
        assert float(result.grad_norm) == pytest.approx(norm.item(), rel=1e-5)
        assert norm > 1.0
    ours = dict(unstacked(session, take.weights()))
    assert largest_gap(ours, transformers_weights(session, model, gradients=False)) < 2e-6


def test_greedy_text_equals_transformers(tmp_path: Path) -> None:
    """Prompts of several lengths at once, past the window of 8."""
    directory = write_tiny_gemma3(tmp_path)
    session, model = open_session(directory, compute_dtype="float32"), transformers_model(directory)
    rng = np.random.default_rng(3)
    prompts = [words(rng, length) for length in (3, 11, 40)]
    answers = session.generate(prompts, Generation(max_new_tokens=24), stop_ids=[])
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor(prompt).long()[None]
        text = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=24,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert answer.ids.tolist() == text[0, len(prompt) :].tolist()


@pytest.mark.heavy
def test_real_270m_has_transformers_loss(gemma_270m: Path) -> None:
    """The engine's loss of real weights on a paragraph."""
    from tests.parity.test_reference_gemma3 import PARAGRAPH
    from tunesmith.data.tokenizer import Tokenizer

    ids = np.array([2, *Tokenizer.load(gemma_270m).encode(PARAGRAPH)], np.int32)
    batch = batch_of([ids], length=96)
    session = open_session(gemma_270m, compute_dtype="float32")
    params, rows = session.params(), place_batch(session.program.mesh, batch)
    ours = float(make_loss(session.program)(params, rows)) / 92
    with torch.no_grad():
        theirs = transformers_loss(transformers_model(gemma_270m), batch).item() / 92
    assert int(batch.target_mask.sum()) == 92
    assert ours == pytest.approx(theirs, abs=1e-3)
    assert ours == pytest.approx(3.0434, abs=1e-3)
