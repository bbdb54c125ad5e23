"""A tiny random Gemma 3 as a complete Hugging Face directory, written with numpy alone.

    write_tiny_gemma3(tmp_path / "tiny")

gives config.json, model.safetensors, tokenizer.json and the small files around it, so that
both this package and transformers load it. Everything is a function of the arguments.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from tunesmith.models.catalog import ModelConfig
from tunesmith.models.weights import module_path

PAD, EOS, BOS, UNK = 0, 1, 2, 3
START_OF_TURN, END_OF_TURN = 105, 106
GEMMA3_CONTROL = {START_OF_TURN: "<start_of_turn>", END_OF_TURN: "<end_of_turn>"}

_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}

# Text from which the tiny tokenizer takes its merges; what it says does not matter.
_MERGE_TEXT = """once upon a time there was a little girl named amy she liked to play in the park
the question is how many singers are there in the table select count from where and order by
name age city country what is the average price of each item group having sum max min the cat
sat on the mat and the dog ran to the tree they were happy together one day he said to her"""


def write_tiny_gemma3(
    directory: str | Path,
    *,
    seed: int = 0,
    layers: int = 7,
    hidden: int = 64,
    intermediate: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    vocab: int = 512,
    sliding_window: int = 8,
    query_pre_attn_scalar: int | None = None,
    rope_scale: float = 1.0,
    max_position: int = 1024,
    prefix: str = "model.",
    dtype: str = "float32",
    chat_template: str | None = None,
) -> Path:
    """Writes the directory and returns its path.

    Args:
        directory: made if missing; files in it are overwritten.
        seed: seeds every weight.
        layers: 7 by default, so that layer 5 (counted from 0) is the one full layer among
            sliding ones, as in Gemma 3 (5 sliding, 1 full).
        hidden, intermediate, heads, kv_heads, head_dim, vocab, sliding_window: the sizes;
            `vocab` must be 512 or more for the tokenizer to fit.
        query_pre_attn_scalar: `head_dim` by default.
        rope_scale: linear RoPE factor of the full layers (8.0 in Gemma 3 from 4B up).
        max_position: `max_position_embeddings`.
        prefix: "model." is Gemma3ForCausalLM. "language_model.model." (published 4B and up) and
            "model.language_model." are Gemma3ForConditionalGeneration with a vision tower.
        dtype: of the weights on disk: float32, bfloat16 or float16.
        chat_template: goes into tokenizer_config.json; a base model has none.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    text = _text_config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        sliding_window=sliding_window,
        query_pre_attn_scalar=head_dim if query_pre_attn_scalar is None else query_pre_attn_scalar,
        max_position_embeddings=max_position,
    )
    if rope_scale != 1.0:
        text["rope_scaling"] = {"rope_type": "linear", "factor": rope_scale}
    multimodal = prefix != "model."
    config = _multimodal_config(text) if multimodal else text
    config["torch_dtype"] = dtype
    _write_json(directory / "config.json", config)

    rng = np.random.default_rng(seed)
    tensors = _text_tensors(rng, text, prefix)
    if multimodal:
        tensors |= _vision_tensors(rng, config["vision_config"], hidden, prefix)
    on_disk = {key: tensor.astype(_DTYPES[dtype]) for key, tensor in tensors.items()}
    save_file(on_disk, directory / "model.safetensors", metadata={"format": "pt"})

    write_tiny_tokenizer(directory, vocab=vocab, chat_template=chat_template)
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD},
    )
    return directory


def write_tiny_tokenizer(
    directory: str | Path,
    *,
    vocab: int = 512,
    chat_template: str | None = None,
    control: Mapping[int, str] = GEMMA3_CONTROL,
) -> Tokenizer:
    """Writes a Gemma-style tokenizer (BPE, byte fallback, "▁" for a space) and returns it.

    Ids: 0 pad, 1 eos, 2 bos, 3 unk, 4 mask, 105 start of turn, 106 end of turn, 107 and 108 one
    and two newlines, then the 256 bytes, "▁" and printable ASCII, then merged pieces.

    Args:
        directory, vocab, chat_template: as in `write_tiny_gemma3`.
        control: control tokens by id, below 107; those of Gemma 3 by default.
    """
    directory = Path(directory)
    ids, merges, special = _vocabulary(vocab, control)
    tokenizer = Tokenizer(
        BPE(
            vocab=ids,
            merges=[("\n", "\n"), *merges],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", BOS)]
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ("\n", "\n\n")])
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")}
    _write_json(directory / "special_tokens_map.json", names)
    settings: dict[str, Any] = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    _write_json(directory / "tokenizer_config.json", settings | names)
    return tokenizer


def _vocabulary(
    vocab: int, control: Mapping[int, str]
) -> tuple[dict[str, int], list[tuple[str, str]], list[str]]:
    """Ids of all pieces, the merges that make the last of them, and the control tokens."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    special += [f"<unused{n}>" for n in range(END_OF_TURN + 1 - len(special))]
    for id, token in control.items():
        special[id] = token
    pieces = [*special, "\n", "\n\n", *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    pieces += [chr(code) for code in range(33, 127)]
    merges = _byte_pair_merges(_MERGE_TEXT, vocab - len(pieces))
    pieces += [left + right for left, right in merges]
    if len(merges) < 40:
        raise ValueError(f"vocab={vocab} leaves no room for merges; take 512 or more")
    padding = [f"<unused{n}>" for n in range(100, 100 + vocab - len(pieces))]
    ids = {piece: index for index, piece in enumerate(pieces + padding)}
    return ids, merges, special + padding


def _byte_pair_merges(text: str, count: int) -> list[tuple[str, str]]:
    """The `count` most frequent merges (fewer if the text is exhausted), each a new piece."""
    words = [["▁", *word] for word in text.split()]
    merges: list[tuple[str, str]] = []
    made: set[str] = set()
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in pairwise(word))
        pairs = Counter({pair: n for pair, n in pairs.items() if "".join(pair) not in made})
        if not pairs:
            break
        left, right = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append((left, right))
        made.add(left + right)
        for word in words:
            for at in range(len(word) - 2, -1, -1):
                if word[at : at + 2] == [left, right]:
                    word[at : at + 2] = [left + right]
    return merges


def _text_config(**sizes: Any) -> dict[str, Any]:
    return sizes | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": None,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
    }


def _multimodal_config(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {key: value for key, value in text.items() if key != "architectures"},
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
            "vision_use_head": False,
        },
        "mm_tokens_per_image": 4,
        "boi_token_index": 7,
        "eoi_token_index": 8,
        "image_token_index": 9,
    }


def _text_tensors(
    rng: np.random.Generator, text: dict[str, Any], prefix: str
) -> dict[str, np.ndarray]:
    hidden, ffn, head_dim = text["hidden_size"], text["intermediate_size"], text["head_dim"]
    q_dim, kv_dim = text["num_attention_heads"] * head_dim, text["num_key_value_heads"] * head_dim
    matrices = {
        "self_attn.q_proj": (q_dim, hidden),
        "self_attn.k_proj": (kv_dim, hidden),
        "self_attn.v_proj": (kv_dim, hidden),
        "self_attn.o_proj": (hidden, q_dim),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    norms = {
        "self_attn.q_norm": head_dim,
        "self_attn.k_norm": head_dim,
        "input_layernorm": hidden,
        "post_attention_layernorm": hidden,
        "pre_feedforward_layernorm": hidden,
        "post_feedforward_layernorm": hidden,
    }
    tensors = {"embed_tokens.weight": _normal(rng, (text["vocab_size"], hidden), hidden**-0.5)}
    for layer in range(text["num_hidden_layers"]):
        for name, shape in matrices.items():
            tensors[f"layers.{layer}.{name}.weight"] = _normal(rng, shape, shape[1] ** -0.5)
        for name, size in norms.items():  # away from 0, so that w and 1 + w cannot be confused
            tensors[f"layers.{layer}.{name}.weight"] = _normal(rng, (size,), 0.2)
    tensors["norm.weight"] = _normal(rng, (hidden,), 0.2)
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _vision_tensors(
    rng: np.random.Generator, vision: dict[str, Any], text_hidden: int, prefix: str
) -> dict[str, np.ndarray]:
    hidden, ffn, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.patch_embedding.weight": (hidden, 3, patch, patch),
        "embeddings.patch_embedding.bias": (hidden,),
        "embeddings.position_embedding.weight": ((vision["image_size"] // patch) ** 2, hidden),
        "post_layernorm.weight": (hidden,),
        "post_layernorm.bias": (hidden,),
    }
    for layer in range(vision["num_hidden_layers"]):
        at = f"encoder.layers.{layer}."
        linears = {f"self_attn.{name}_proj": (hidden, hidden) for name in ("q", "k", "v", "out")}
        linears |= {"mlp.fc1": (ffn, hidden), "mlp.fc2": (hidden, ffn)}
        for name, shape in linears.items():
            shapes |= {f"{at}{name}.weight": shape, f"{at}{name}.bias": shape[:1]}
        for name in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{at}{name}.weight": (hidden,), f"{at}{name}.bias": (hidden,)}
    projector = {"mm_input_projection_weight": (hidden, text_hidden)}
    projector |= {"mm_soft_emb_norm.weight": (hidden,)}
    outer = "model." if prefix.startswith("model.") else ""
    tower = f"{outer}vision_tower.vision_model."
    named = {tower + name: shape for name, shape in shapes.items()}
    named |= {f"{outer}multi_modal_projector.{name}": s for name, s in projector.items()}
    return {name: _normal(rng, shape, 0.02) for name, shape in named.items()}


def _normal(rng: np.random.Generator, shape: tuple[int, ...], std: float) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(std)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def adapter_key(config: ModelConfig, name: str, matrix: str) -> str:
    """PEFT's key of one matrix (A or B), by our parameter name."""
    return f"base_model.model.{module_path(config, name)}.lora_{matrix}.weight"
