"""LoRA in the JAX engine against PEFT on transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.parity.test_jax_gemma3 import some_batch, transformers_loss, transformers_model
from tests.tiny import adapter_key, write_tiny_gemma3
from tests.tiny_engine import Gradients, largest_gap, open_tiny, words
from tunesmith.engines.jax.export import unstack_adapter
from tunesmith.engines.jax.session import JaxSession

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.parity,
    # PEFT 0.21 still reads the name that transformers 5.24 deprecates.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


def with_random_adapters(directory: Path, **lora: Any) -> JaxSession:
    """A session whose B matrices are not zero any more."""
    session, rng = open_tiny(directory, lora=lora), np.random.default_rng(4)
    session.trainable = {
        name: array + 0.1 * rng.standard_normal(array.shape, dtype=np.float32)
        for name, array in session.trainable.items()
    }
    return session


def by_peft_key(session: JaxSession, tree: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stacked adapter arrays by PEFT's keys of single layers."""
    config, lora = session.program.config, session.lora
    assert lora is not None
    found = {}
    for name, (a, b) in unstack_adapter(config, tree, lora).pairs.items():
        found |= {adapter_key(config, name, "A"): a, adapter_key(config, name, "B"): b}
    return found


@pytest.mark.parametrize("prefix", ["model.", "language_model.model."])
def test_logits_and_gradients_equal_pefts(prefix: str, tmp_path: Path) -> None:
    """G32, G17: the exported adapter, loaded by PEFT, is the trainer's; towers have none."""
    directory = write_tiny_gemma3(tmp_path / "tiny", prefix=prefix)
    targets = ["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]
    session = with_random_adapters(directory, r=4, alpha=6.0, targets=targets)
    out = tmp_path / "adapter"
    out.mkdir()
    session.export(out, kind="adapter", dtype="base")

    model = peft.PeftModel.from_pretrained(transformers_model(directory), out, is_trainable=True)
    model.eval()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * 5 * 7
    assert not [name for name in trained if "vision" in name]

    ids = words(np.random.default_rng(5), 40)
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor(ids).long()[None]).logits[0].numpy()
        with model.disable_adapter():
            base = model(input_ids=torch.tensor(ids).long()[None]).logits[0].numpy()
    np.testing.assert_allclose(session.logits(ids), theirs, atol=2e-5, rtol=0)
    assert np.abs(theirs - base).max() > 0.5

    batch = some_batch(np.random.default_rng(6))
    loss, gradients = Gradients(session)(batch)
    their_loss = transformers_loss(model, batch)
    their_loss.backward()
    assert loss == pytest.approx(their_loss.item(), rel=1e-6)
    expected = {
        name.replace(".default", ""): parameter.grad.numpy() for name, parameter in trained.items()
    }
    assert min(np.abs(gradient).max() for gradient in expected.values()) > 1e-2
    assert largest_gap(by_peft_key(session, gradients), expected) < 1e-4


def test_fresh_adapters_start_as_pefts(tmp_path: Path) -> None:
    """B zero, A uniform within 1/sqrt(inputs), so that the first logits are the base model's."""
    directory = write_tiny_gemma3(tmp_path)
    lora = {"r": 8, "alpha": 16.0, "targets": ["q_proj", "down_proj"]}
    session = open_tiny(directory, lora=lora)
    settings = peft.LoraConfig(r=8, lora_alpha=16, target_modules=lora["targets"])
    model = peft.get_peft_model(transformers_model(directory), settings)
    theirs = {n.replace(".default", ""): p.detach() for n, p in model.named_parameters()}
    ours = by_peft_key(session, {n: np.asarray(a) for n, a in session.trainable.items()})
    assert ours.keys() == {name for name in theirs if ".lora_" in name}
    for name, array in ours.items():
        same = theirs[name].numpy()
        assert array.shape == same.shape
        if ".lora_B." in name:
            assert not array.any()
            assert not same.any()
            continue
        bound = array.shape[1] ** -0.5
        assert 0.95 * bound < np.abs(array).max() <= bound
        assert 0.95 * bound < np.abs(same).max() <= bound
        assert abs(array.std() / same.std() - 1) < 0.1
