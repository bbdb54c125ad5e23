"""The tiny Gemma 3 of `tests.tiny` as a GGUF, as llama.cpp's converter would write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def gguf_name(key: str) -> str:
    """llama.cpp's name of a Hugging Face key."""
    stem = key.removeprefix("model.").removesuffix(".weight")
    if not stem.startswith("layers."):
        return {"embed_tokens": "token_embd", "norm": "output_norm"}[stem] + ".weight"
    _, layer, name = stem.split(".", 2)
    return f"blk.{layer}.{_NAMES[name]}.weight"


def write_tiny_gguf(
    path: Path,
    model_dir: Path,
    *,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    leave_out: str | None = None,
    extra_tensor: str | None = None,
    architecture: str = "gemma3",
    extra_metadata: dict[str, Any] | None = None,
) -> Path:
    """Writes the model in `model_dir` as one GGUF; matrices in `quantization`, norms in float32."""
    config = json.loads((model_dir / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.sliding_window": config["sliding_window"],
    }.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    writer.add_float32(f"{architecture}.rope.freq_base", config["rope_theta"])
    if config["rope_scaling"]:
        writer.add_string(f"{architecture}.rope.scaling.type", "linear")
        factor = config["rope_scaling"]["factor"]
        writer.add_float32(f"{architecture}.rope.scaling.factor", factor)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    _add_tokenizer(writer, model_dir)
    for key, value in (extra_metadata or {}).items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_uint32(key, value)
    for key, tensor in load_file(model_dir / "model.safetensors").items():
        if gguf_name(key) == leave_out:
            continue
        if key.endswith("norm.weight"):
            writer.add_tensor(gguf_name(key), tensor + 1)
        else:
            packed = gguf.quants.quantize(tensor, quantization)
            writer.add_tensor(gguf_name(key), packed, raw_dtype=quantization)
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, model_dir: Path) -> None:
    tokenizer = json.loads((model_dir / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    user_defined = {token["id"] for token in tokenizer["added_tokens"]} - special
    tokens = list(tokenizer["model"]["vocab"])
    types, scores = [], []
    for index, token in enumerate(tokens):
        if index in special:
            types.append(CONTROL)
        elif index in user_defined:
            types.append(USER_DEFINED)
        else:
            types.append(BYTE if token.startswith("<0x") else NORMAL)
        # As in Gemma: the score falls with the rank, and tells nothing where there are no merges.
        scores.append(-float(index) if types[-1] == NORMAL else -1000.0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(3)
    writer.add_pad_token_id(0)
