"""Parameters: declared once, loaded from a checkpoint, turned back into one.

A parameter tree is a flat dict by name. Those of the layers are stacked, [L, …], so that one
compiled layer serves them all (`jax.lax.scan`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from tunesmith.engines.lora_start import draw_a
from tunesmith.models.catalog import ModelConfig
from tunesmith.models.weights import parameter_specs
from tunesmith.recipe.schema import LoraSection

Params = dict[str, jax.Array]

STACK = "layers."
LORA_A, LORA_B = ".lora_a", ".lora_b"

# PEFT's and Hugging Face's names of the projections, ours beside them.
PROJECTIONS = {
    "q_proj": "attn.q",
    "k_proj": "attn.k",
    "v_proj": "attn.v",
    "o_proj": "attn.o",
    "gate_proj": "mlp.gate",
    "up_proj": "mlp.up",
    "down_proj": "mlp.down",
}


@dataclass(frozen=True, slots=True)
class Declared:
    """One parameter.

    Attributes:
        shape: of the stacked array.
        axes: logical axis of each dimension, from which sharding follows.
        decays: whether weight decay applies: matrices decay, norms do not.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    decays: bool


_OUT = {
    "attn.q": "heads",
    "attn.k": "kv_heads",
    "attn.v": "kv_heads",
    "attn.o": "hidden",
    "mlp.gate": "ffn",
    "mlp.up": "ffn",
    "mlp.down": "hidden",
}
_IN = dict.fromkeys(_OUT, "hidden") | {"attn.o": "heads", "mlp.down": "ffn"}


def declare(config: ModelConfig) -> dict[str, Declared]:
    """All parameters of the text decoder."""
    declared = {}
    for name, spec in parameter_specs(config).items():
        if not name.startswith(STACK):
            axes = ("vocab", "hidden") if name == "embed" else ("hidden",)
            declared[name] = Declared(spec.shape, axes, decays=len(axes) > 1)
        elif name.startswith("layers.0."):
            short = name.removeprefix("layers.0.")
            axes = (_OUT[short], _IN[short]) if short in _OUT else ("norm",)
            declared[STACK + short] = Declared(
                (config.num_layers, *spec.shape), ("layers", *axes), decays=short in _OUT
            )
    return declared


def declare_lora(config: ModelConfig, lora: LoraSection) -> dict[str, Declared]:
    """The adapters' parameters: A [L, r, in] and B [L, out, r], PEFT's orientation."""
    base, declared = declare(config), {}
    for target in lora.targets:
        short = PROJECTIONS[target]
        layers, out, into = base[STACK + short].shape
        declared[STACK + short + LORA_A] = Declared(
            (layers, lora.r, into), ("layers", "rank", _IN[short]), decays=True
        )
        declared[STACK + short + LORA_B] = Declared(
            (layers, out, lora.r), ("layers", _OUT[short], "rank"), decays=True
        )
    return declared


def layer_names(config: ModelConfig, name: str) -> list[str]:
    """Names of one stacked parameter's layers, as `models.weights` knows them."""
    short = name.removeprefix(STACK)
    return [f"{STACK}{i}.{short}" for i in range(config.num_layers)]


def load_params(
    config: ModelConfig,
    weights: Mapping[str, np.ndarray],
    dtypes: str | Mapping[str, str],
    place: Callable[[np.ndarray], jax.Array] = jnp.asarray,
) -> Params:
    """Read and stack a checkpoint, one parameter at a time.

    Args:
        config: the model's shape.
        weights: per-layer arrays by name (`models.weights.read_weights`).
        dtypes: type of the arrays in memory, one for all or by name.
        place: puts a host array on the devices.
    """
    params = {}
    for name, declared in declare(config).items():
        dtype = jnp.dtype(dtypes if isinstance(dtypes, str) else dtypes[name])
        if name.startswith(STACK):
            stacked = np.empty(declared.shape, dtype)
            for i, layer in enumerate(layer_names(config, name)):
                stacked[i] = weights[layer]
        else:
            stacked = np.asarray(weights[name]).astype(dtype, copy=False)
        params[name] = place(stacked)
    return params


def init_lora(config: ModelConfig, lora: LoraSection, seed: int) -> dict[str, np.ndarray]:
    """Fresh adapters in float32, as every engine starts them (`engines.lora_start`)."""
    declared = declare_lora(config, lora)
    shapes = {}
    for target in lora.targets:
        layers, r, into = declared[STACK + PROJECTIONS[target] + LORA_A].shape
        shapes[target] = [(r, into)] * layers
    fresh = {
        name: np.zeros(adapter.shape, np.float32)
        for name, adapter in declared.items()
        if name.endswith(LORA_B)
    }
    for target, matrices in draw_a(shapes, seed).items():
        fresh[STACK + PROJECTIONS[target] + LORA_A] = np.stack(matrices)
    return fresh
