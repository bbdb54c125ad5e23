"""LoRA adapters in PEFT's format: their keys, and merging them into weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tunesmith.errors import UserError
from tunesmith.models.catalog import TEXT_PREFIX, ModelConfig
from tunesmith.models.tensor_files import TensorFiles, read_json
from tunesmith.models.weights import module_path, parameter_specs
from tunesmith.recipe.schema import LoraSection


@dataclass(frozen=True, slots=True)
class Adapter:
    """Low-rank updates by our parameter names.

    Attributes:
        pairs: A [r, in_features] and B [out_features, r] of each adapted matrix, float32.
        scale: `lora_alpha / r`.
    """

    pairs: dict[str, tuple[np.ndarray, np.ndarray]]
    scale: float


def adapter_key(config: ModelConfig, name: str, matrix: Literal["A", "B"]) -> str:
    """PEFT's key of one matrix, e.g. `base_model.model.model.layers.0….q_proj.lora_A.weight`."""
    return f"base_model.model.{module_path(config, name)}.lora_{matrix}.weight"


def read_adapter(adapter_dir: str | Path, config: ModelConfig) -> Adapter:
    """Reads adapter_config.json and adapter_model.safetensors.

    Raises:
        UserError: files are missing or damaged, the adapter is not plain LoRA, or it does not fit
            the model.
    """
    directory = Path(adapter_dir)
    settings = read_json(directory / "adapter_config.json")
    _refuse_variants(settings, directory / "adapter_config.json")
    rank, alpha = settings["r"], settings["lora_alpha"]
    files = TensorFiles(directory, "adapter_model")
    matrices = {
        name: spec for name, spec in parameter_specs(config).items() if len(spec.shape) == 2
    }
    pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    used: set[str] = set()
    for name, spec in matrices.items():
        keys = adapter_key(config, name, "A"), adapter_key(config, name, "B")
        if keys[0] not in files and keys[1] not in files:
            continue
        used.update(keys)
        for key, shape in zip(keys, ((rank, spec.shape[1]), (spec.shape[0], rank)), strict=True):
            found = files.shape(key) if key in files else None
            if found != shape:
                raise UserError(
                    f"{directory}: {key} should be {shape}, but is {found or 'missing'}"
                )
        a, b = (files.read(key).astype(np.float32, copy=False) for key in keys)
        pairs[name] = a, b
    unknown = sorted(set(files) - used)
    if unknown or not pairs:
        raise UserError(
            f"{directory} does not fit the model: {', '.join(unknown[:5]) or 'no matrices'}",
            "Name the base model that the adapter was trained on.",
        )
    return Adapter(pairs, alpha / rank)


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
    """Writes adapter_config.json and adapter_model.safetensors as PEFT does, in float32.

    Args:
        out_dir: an existing directory.
        config: the base model's shape.
        adapter: matrices by our names.
        lora: the figures they were trained with.
        base_model: what the adapter belongs on; kept in the file for whoever loads it.
    """
    from safetensors.numpy import save_file

    tensors = {}
    for name, (a, b) in adapter.pairs.items():
        tensors[adapter_key(config, name, "A")] = np.ascontiguousarray(a, np.float32)
        tensors[adapter_key(config, name, "B")] = np.ascontiguousarray(b, np.float32)
    save_file(tensors, out_dir / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base_model),
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        # A regular expression, for the names alone would match a multimodal model's vision tower.
        "target_modules": _targets(config, lora),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (out_dir / "adapter_config.json").write_text(text, encoding="utf-8")


def _targets(config: ModelConfig, lora: LoraSection) -> list[str] | str:
    if config.weight_prefix == TEXT_PREFIX:
        return list(lora.targets)
    return rf"model\.language_model\.layers\.\d+\.\w+\.({'|'.join(lora.targets)})"


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
