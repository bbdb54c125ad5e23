"""LoRA adapters in PEFT's format: their keys, and merging them into weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.errors import UserError
from tunesmith.models.catalog import ModelConfig
from tunesmith.models.tensor_files import TensorFiles, read_json
from tunesmith.models.weights import module_path, parameter_specs
from tunesmith.recipe.schema import LoraSection

_PEFT_PREFIX = "base_model.model."
_MULTIMODAL = "model.language_model."


@dataclass(frozen=True, slots=True)
class Adapter:
    """Low-rank updates of matrices.

    Attributes:
        pairs: A [r, in_features] and B [out_features, r] of each adapted matrix, float32; by our
            parameter names, or by module path where a function says so.
        scale: `lora_alpha / r`.
    """

    pairs: dict[str, tuple[np.ndarray, np.ndarray]]
    scale: float


def read_peft(adapter_dir: str | Path) -> Adapter:
    """Reads adapter_config.json and adapter_model.safetensors.

    Returns:
        Pairs by the path of the module that PEFT adapted, e.g. `model.layers.0.self_attn.q_proj`.

    Raises:
        UserError: files are missing or damaged, or the adapter is not plain LoRA.
    """
    directory = Path(adapter_dir)
    settings = read_json(directory / "adapter_config.json")
    _refuse_variants(settings, directory / "adapter_config.json")
    rank, alpha = settings["r"], settings["lora_alpha"]
    files = TensorFiles(directory, "adapter_model")
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    unknown = set(files)
    for key_a in sorted(files):
        if not (key_a.startswith(_PEFT_PREFIX) and key_a.endswith(".lora_A.weight")):
            continue
        stem = key_a.removesuffix(".lora_A.weight")
        key_b = f"{stem}.lora_B.weight"
        unknown -= {key_a, key_b}
        found = [files.shape(key) if key in files else None for key in (key_a, key_b)]
        for key, shape, axis in zip((key_a, key_b), found, (0, 1), strict=True):
            if shape is None or len(shape) != 2 or shape[axis] != rank:
                raise UserError(
                    f"{directory}: {key} should be a matrix of rank {rank}, but is "
                    f"{shape or 'missing'}"
                )
        a, b = (files.read(key).astype(np.float32, copy=False) for key in (key_a, key_b))
        pairs[stem.removeprefix(_PEFT_PREFIX)] = a, b
    if unknown or not pairs:
        raise UserError(
            f"{directory} holds no plain LoRA adapter: "
            f"{', '.join(sorted(unknown)[:5]) or 'no matrices'}",
            "Name a folder that PEFT or tunesmith wrote.",
        )
    return Adapter(pairs, alpha / rank)


def read_adapter(adapter_dir: str | Path, config: ModelConfig) -> Adapter:
    """Reads an adapter of a model; pairs by our names.

    Raises:
        UserError: as `read_peft`, or it does not fit the model.
    """
    read = read_peft(adapter_dir)
    matrices = {
        module_path(config, name): (name, spec.shape)
        for name, spec in parameter_specs(config).items()
        if len(spec.shape) == 2
    }
    pairs = {}
    for path, (a, b) in read.pairs.items():
        name, shape = matrices.get(path, ("", None))
        if shape is None:
            raise UserError(
                f"{adapter_dir} does not fit the model, which has no {path}",
                "Name the base model that the adapter was trained on.",
            )
        if (b.shape[0], a.shape[1]) != shape:
            raise UserError(
                f"{adapter_dir}: {path} is adapted as {(b.shape[0], a.shape[1])}, "
                f"but is {shape} in the model",
                "Name the base model that the adapter was trained on.",
            )
        pairs[name] = a, b
    return Adapter(pairs, read.scale)


def merged(weights: Mapping[str, np.ndarray], adapter: Adapter) -> dict[str, np.ndarray]:
    """All weights in float32, the adapted ones as `W + scale * B @ A`."""
    return {name: merged_tensor(tensor, name, adapter) for name, tensor in weights.items()}


def merged_tensor(weight: np.ndarray, name: str, adapter: Adapter) -> np.ndarray:
    """One weight in float32: `W + scale * B @ A` if it is adapted, else as it is."""
    weight = weight.astype(np.float32, copy=False)
    if name not in adapter.pairs:
        return weight
    a, b = adapter.pairs[name]
    return weight + np.float32(adapter.scale) * (b @ a)


def write_adapter(
    out_dir: Path, config: ModelConfig, adapter: Adapter, lora: LoraSection, base_model: Path | str
) -> None:
    """Writes an adapter whose pairs are by our names; see `write_peft`."""
    pairs = {module_path(config, name): pair for name, pair in adapter.pairs.items()}
    write_peft(out_dir, Adapter(pairs, adapter.scale), lora, base_model)


def write_peft(out_dir: Path, adapter: Adapter, lora: LoraSection, base_model: Path | str) -> None:
    """Writes adapter_config.json and adapter_model.safetensors as PEFT does, in float32.

    Args:
        out_dir: an existing directory.
        adapter: matrices by module path.
        lora: the figures they were trained with.
        base_model: what the adapter belongs on; kept in the file for whoever loads it.
    """
    from safetensors.numpy import save_file

    tensors = {}
    for path, (a, b) in adapter.pairs.items():
        tensors[f"{_PEFT_PREFIX}{path}.lora_A.weight"] = np.ascontiguousarray(a, np.float32)
        tensors[f"{_PEFT_PREFIX}{path}.lora_B.weight"] = np.ascontiguousarray(b, np.float32)
    save_file(tensors, out_dir / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base_model),
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": _targets(adapter, lora),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (out_dir / "adapter_config.json").write_text(text, encoding="utf-8")


def _targets(adapter: Adapter, lora: LoraSection) -> list[str] | str:
    """The projections; a regular expression where their names alone would match towers too."""
    if all(path.startswith(_MULTIMODAL) for path in adapter.pairs):
        return rf"model\.language_model\.layers\.\d+\.\w+\.({'|'.join(lora.targets)})"
    return list(lora.targets)


def _refuse_variants(settings: Any, path: Path) -> None:
    if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
        raise UserError(f"{path} does not describe a LoRA adapter")
    plain = {
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "fan_in_fan_out": False,
        "rank_pattern": {},
        "alpha_pattern": {},
        "modules_to_save": None,
    }
    for name, value in plain.items():
        if settings.get(name, value) not in (value, None):
            raise UserError(f"{path}: `{name}` is {settings[name]!r}; only plain LoRA can be read")
    for name in ("r", "lora_alpha"):
        value = settings.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise UserError(f"{path}: `{name}` must be a positive number, not {value!r}")
