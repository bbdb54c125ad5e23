"""A plain Gemma 3 in numpy, float32 throughout, to check engines and exported folders by.

Written to be read beside the report (Gemma Team, "Gemma 3 Technical Report", 2025,
https://arxiv.org/abs/2503.19786) and transformers' modeling_gemma3.py; shares no code with the
engines. One sequence at a time. Letters in shapes: T new tokens, S all tokens so far, V vocabulary,
D hidden size, H query heads, K key-value heads, F head_dim.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tunesmith.models.adapter import merged, read_adapter
from tunesmith.models.catalog import ARCHITECTURES, ModelConfig, load_config
from tunesmith.models.tensor_files import read_json
from tunesmith.models.weights import read_weights


def load(model_dir: str | Path, adapter_dir: str | Path | None = None) -> Reference:
    """Loads a Hugging Face directory, and merges a PEFT adapter into it if one is given.

    Raises:
        UserError: as `load_config`, `read_weights` and `read_adapter`.
    """
    config = load_config(model_dir)
    weights = read_weights(model_dir, config, dtype="float32")
    if adapter_dir is None:
        return Reference(config, dict(weights))
    return Reference(config, merged(weights, read_adapter(adapter_dir, config)))


def knows(model_dir: str | Path) -> bool:
    """Whether a directory's model is of a family that is written here."""
    config = read_json(Path(model_dir) / "config.json")
    return isinstance(config, dict) and config.get("model_type") in ARCHITECTURES.values()


@dataclass
class KeyValueCache:
    """Keys and values [S, K, F] per layer of the tokens seen so far."""

    length: int = 0
    layers: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reference:
    """A loaded model; `weights` are float32, by the names of `models.weights.parameter_specs`."""

    config: ModelConfig
    weights: Mapping[str, np.ndarray]

    def forward(
        self,
        ids: Sequence[int] | np.ndarray,
        *,
        positions: Sequence[int] | np.ndarray | None = None,
    ) -> np.ndarray:
        """Logits that predict the token after each position.

        Args:
            ids: [T], one sequence from its start.
            positions: compute the logits of these alone, as [T, V] takes 1 MB per token.

        Returns:
            float32 [T, V], or [len(positions), V].
        """
        x_TD = self._hidden(np.asarray(ids), KeyValueCache())
        return self._logits(x_TD if positions is None else x_TD[np.asarray(positions)])

    def greedy(
        self, ids: Sequence[int] | np.ndarray, max_new_tokens: int, stop_ids: Collection[int]
    ) -> list[int]:
        """The likeliest continuation, token by token, up to and without the first of `stop_ids`."""
        cache = KeyValueCache()
        new: list[int] = []
        step = np.asarray(ids)
        while len(new) < max_new_tokens:
            likeliest = int(self._logits(self._hidden(step, cache)[-1:]).argmax())
            if likeliest in stop_ids:
                break
            new.append(likeliest)
            step = np.array([likeliest])
        return new

    def _logits(self, x_TD: np.ndarray) -> np.ndarray:
        return x_TD @ self.weights["embed"].T

    def _hidden(self, ids: np.ndarray, cache: KeyValueCache) -> np.ndarray:
        """Final hidden states [T, D] of new tokens; the cache grows by them."""
        x_TD = self.weights["embed"][ids] * np.float32(self.config.hidden_size**0.5)
        for layer in range(self.config.num_layers):
            attended = self._attention(self._norm(x_TD, f"layers.{layer}.input_norm"), layer, cache)
            x_TD = x_TD + self._norm(attended, f"layers.{layer}.post_attn_norm")
            fed = self._mlp(self._norm(x_TD, f"layers.{layer}.pre_ffw_norm"), layer)
            x_TD = x_TD + self._norm(fed, f"layers.{layer}.post_ffw_norm")
        cache.length += len(ids)
        return self._norm(x_TD, "final_norm")

    def _attention(self, x_TD: np.ndarray, layer: int, cache: KeyValueCache) -> np.ndarray:
        config, name = self.config, f"layers.{layer}.attn"
        sliding = config.layer_types[layer] == "sliding"
        new = cache.length + np.arange(len(x_TD))  # positions of the new tokens

        def project(matrix: str, heads: int) -> np.ndarray:
            return self._linear(x_TD, f"{name}.{matrix}").reshape(len(x_TD), heads, config.head_dim)

        def rotate(x_THF: np.ndarray) -> np.ndarray:
            if sliding:
                return rope(x_THF, new, config.rope_theta_local, 1.0)
            return rope(x_THF, new, config.rope_theta_global, config.rope_scale_global)

        q_THF = rotate(self._norm(project("q", config.num_heads), f"{name}.q_norm"))
        k_SKF = rotate(self._norm(project("k", config.num_kv_heads), f"{name}.k_norm"))
        v_SKF = project("v", config.num_kv_heads)
        if layer in cache.layers:
            old_k, old_v = cache.layers[layer]
            k_SKF, v_SKF = np.concatenate([old_k, k_SKF]), np.concatenate([old_v, v_SKF])
        cache.layers[layer] = k_SKF, v_SKF

        distance_TS = new[:, None] - np.arange(len(k_SKF))
        visible_TS = distance_TS >= 0
        if sliding:
            visible_TS &= distance_TS < config.sliding_window
        scale = np.float32(config.query_pre_attn_scalar**-0.5)
        out_THF = np.empty_like(q_THF)
        for head in range(config.num_heads):
            kv_head = head // (config.num_heads // config.num_kv_heads)
            scores_TS = (q_THF[:, head] @ k_SKF[:, kv_head].T) * scale
            out_THF[:, head] = softmax(np.where(visible_TS, scores_TS, -np.inf)) @ v_SKF[:, kv_head]
        return self._linear(out_THF.reshape(len(x_TD), -1), f"{name}.o")

    def _mlp(self, x_TD: np.ndarray, layer: int) -> np.ndarray:
        gate = gelu_tanh(self._linear(x_TD, f"layers.{layer}.mlp.gate"))
        return self._linear(
            gate * self._linear(x_TD, f"layers.{layer}.mlp.up"), f"layers.{layer}.mlp.down"
        )

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[name].T

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return rms_norm(x, self.weights[name], self.config.rms_norm_eps)


def rms_norm(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    """Over the last axis; Gemma 3 multiplies by 1 + w."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + np.float32(eps)) * (1 + w)


def rope(x_THF: np.ndarray, positions_T: np.ndarray, theta: float, scale: float) -> np.ndarray:
    """Turns the pair (x[f], x[f + F/2]) by position / scale * theta^(-2f/F) (Su et al., 2021).

    Angles are float32 as in transformers; more precision moves them by 1e-4 at position 1000.
    """
    half = x_THF.shape[-1] // 2
    inverse = 1 / np.float32(theta) ** (np.arange(half, dtype=np.float32) / np.float32(half))
    angles_TF = positions_T[:, None].astype(np.float32) * (inverse / np.float32(scale))
    cos, sin = np.cos(angles_TF)[:, None], np.sin(angles_TF)[:, None]
    first, second = x_THF[..., :half], x_THF[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """GELU in the tanh approximation (Hendrycks and Gimpel, 2016)."""
    inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))
