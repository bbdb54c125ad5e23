"""Checkpoint ↔ our parameters: one key table per family, used for reading and for writing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tunesmith.errors import UserError
from tunesmith.models.catalog import TEXT_PREFIX, ModelConfig
from tunesmith.models.tensor_files import DTYPES, INDEX_FILE, SINGLE_FILE, TensorFiles

# Our name within a layer, the checkpoint's, and the shape in terms of `_sizes`. Orientation is the
# checkpoint's: [out_features, in_features].
_GEMMA3_LAYER = {
    "attn.q": ("self_attn.q_proj", ("q", "hidden")),
    "attn.k": ("self_attn.k_proj", ("kv", "hidden")),
    "attn.v": ("self_attn.v_proj", ("kv", "hidden")),
    "attn.o": ("self_attn.o_proj", ("hidden", "q")),
    "attn.q_norm": ("self_attn.q_norm", ("head",)),
    "attn.k_norm": ("self_attn.k_norm", ("head",)),
    "mlp.gate": ("mlp.gate_proj", ("ffn", "hidden")),
    "mlp.up": ("mlp.up_proj", ("ffn", "hidden")),
    "mlp.down": ("mlp.down_proj", ("hidden", "ffn")),
    "input_norm": ("input_layernorm", ("hidden",)),
    "post_attn_norm": ("post_attention_layernorm", ("hidden",)),
    "pre_ffw_norm": ("pre_feedforward_layernorm", ("hidden",)),
    "post_ffw_norm": ("post_feedforward_layernorm", ("hidden",)),
}
_GEMMA3_OUTER = {
    "embed": ("embed_tokens", ("vocab", "hidden")),
    "final_norm": ("norm", ("hidden",)),
}
_LAYERS = {"gemma3": _GEMMA3_LAYER}
_OUTER = {"gemma3": _GEMMA3_OUTER}

# Keys of a multimodal checkpoint that belong to its vision side, and of a head beside the
# embedding, which it repeats.
_TOWERS = ("vision_tower.", "multi_modal_projector.")
HEADS = ("lm_head.weight", "language_model.lm_head.weight")


@dataclass(frozen=True, slots=True)
class Spec:
    """One parameter: its shape and its key in the checkpoint."""

    shape: tuple[int, ...]
    hf_key: str


def parameter_specs(config: ModelConfig) -> dict[str, Spec]:
    """All parameters of the text decoder by our names, embedding first, final norm last."""
    outer = {
        name: Spec(_shape(dims, config), f"{config.weight_prefix}{key}.weight")
        for name, (key, dims) in _OUTER[config.family].items()
    }
    layers = {
        f"layers.{i}.{name}": Spec(
            _shape(dims, config), f"{config.weight_prefix}layers.{i}.{key}.weight"
        )
        for i in range(config.num_layers)
        for name, (key, dims) in _LAYERS[config.family].items()
    }
    return {"embed": outer.pop("embed")} | layers | outer


def module_path(config: ModelConfig, name: str) -> str:
    """Where transformers 5 keeps a parameter, e.g. `model.layers.0.self_attn.q_proj`.

    PEFT names adapters by it. It differs from the checkpoint's key in multimodal models, which are
    stored under `language_model.model.` and live under `model.language_model.`
    """
    stem = parameter_specs(config)[name].hf_key.removesuffix(".weight")
    living = TEXT_PREFIX if config.weight_prefix == TEXT_PREFIX else "model.language_model."
    return living + stem.removeprefix(config.weight_prefix)


class Weights(Mapping[str, np.ndarray]):
    """Parameters by our names. Each look-up reads one tensor from disk, so memory stays bounded.

    Attributes:
        tower_keys: checkpoint keys of a multimodal model's vision side, which is not ours to train.
    """

    def __init__(
        self, files: TensorFiles, specs: dict[str, Spec], dtype: str | None, tower_keys: list[str]
    ) -> None:
        self._files, self._specs, self._dtype = files, specs, dtype
        self.tower_keys = tower_keys

    def __getitem__(self, name: str) -> np.ndarray:
        key = self._specs[name].hf_key
        tensor = self._files.read(key)
        if tensor.dtype == np.float16 and not np.isfinite(tensor).all():
            raise UserError(
                f"{self._files.directory}: {key} holds numbers that are not finite",
                "They were saved in float16, whose range Gemma exceeds; use the original weights.",
            )
        return tensor if self._dtype is None else tensor.astype(self._dtype, copy=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def stored_dtype(self, name: str) -> str:
        """Type on disk: float32, bfloat16 or float16."""
        return self._files.dtype(self._specs[name].hf_key)

    def towers(self) -> Iterator[tuple[str, np.ndarray]]:
        """The vision side as stored, for an export that must be whole."""
        return ((key, self._files.read(key)) for key in self.tower_keys)


def read_weights(
    model_dir: str | Path, config: ModelConfig, *, dtype: str | None = "float32"
) -> Weights:
    """Opens a directory's weights after checking all names, shapes and types.

    Args:
        model_dir: Hugging Face directory.
        config: from `load_config` of the same directory.
        dtype: numpy's name of the type to give; None keeps the stored one.

    Raises:
        UserError: tensors are missing, unexpected, of another shape or quantized, or the head is
            not the embedding.
    """
    files = TensorFiles(model_dir)
    specs = parameter_specs(config)
    expected = {spec.hf_key: spec.shape for spec in specs.values()}
    multimodal = config.weight_prefix != TEXT_PREFIX
    tower_keys = [key for key in files if multimodal and _is_tower(key)]
    heads = [key for key in files if key in HEADS]
    missing = [key for key in expected if key not in files]
    unexpected = set(files) - expected.keys() - set(tower_keys) - set(heads)
    if missing or unexpected:
        raise UserError(
            f"{files.directory}: the weights do not fit config.json"
            + _listing("missing", missing)
            + _listing("unexpected", sorted(unexpected))
        )
    wrong = [
        f"{key} is {files.dtype(key)} {list(files.shape(key))}, not {list(shape)}"
        for key, shape in expected.items()
        if files.shape(key) != shape or files.dtype(key) not in DTYPES.values()
    ]
    if wrong:
        raise UserError(
            f"{files.directory}: the weights do not fit config.json{_listing('differ', wrong)}",
            f"Types that can be read: {', '.join(DTYPES.values())}.",
        )
    refuse_own_head(files, specs["embed"].hf_key)
    return Weights(files, specs, dtype, tower_keys)


def refuse_own_head(files: TensorFiles, embed_key: str) -> None:
    """See that a head, where a checkpoint has one, is the embedding once more.

    Raises:
        UserError: it is another matrix.
    """
    for head in HEADS:
        if head in files and not np.array_equal(files.read(head), files.read(embed_key)):
            raise UserError(
                f"{files.directory}: {head} differs from the embedding",
                "Gemma's head is its embedding (tied); a model with its own head is not Gemma.",
            )


def _shape(dims: tuple[str, ...], config: ModelConfig) -> tuple[int, ...]:
    sizes = {
        "vocab": config.vocab_size,
        "hidden": config.hidden_size,
        "ffn": config.intermediate_size,
        "head": config.head_dim,
        "q": config.num_heads * config.head_dim,
        "kv": config.num_kv_heads * config.head_dim,
    }
    return tuple(sizes[dim] for dim in dims)


def _is_tower(key: str) -> bool:
    return key.removeprefix("model.").startswith(_TOWERS)


def _listing(what: str, items: list[str]) -> str:
    if not items:
        return ""
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return f"; {what}: {', '.join(items[:5])}{more}"


# -- writing ------------------------------------------------------------------------------------

# Bytes kept free at the front of a shard for its header, which is known only when the last tensor
# is written. Safetensors lets a header end in spaces; 1,000 tensors take about 150 kB.
_HEADER_ROOM = 256 * 1024
_SAFETENSORS_NAME = {numpy_name: name for name, numpy_name in DTYPES.items()}


def write_weights(
    out_dir: str | Path,
    tensors: Iterable[tuple[str, np.ndarray]],
    *,
    max_shard_bytes: float = 5e9,
) -> list[Path]:
    """Writes safetensors shards, and their index if more than one, a tensor at a time.

    Files appear under their names when all are complete, the index last; a failure leaves none.

    Args:
        out_dir: an existing directory without weights.
        tensors: checkpoint key and tensor (float32, bfloat16 or float16), in the order wanted.
        max_shard_bytes: a new file starts before this size is passed.

    Returns:
        The files written.

    Raises:
        UserError: the directory holds weights already.
    """
    out_dir = Path(out_dir)
    present = sorted(path.name for path in out_dir.glob("model*.safetensors*"))
    if present:
        raise UserError(f"{out_dir} already holds {', '.join(present)}", "Remove them first.")
    shards: list[_Shard] = []
    try:
        for key, tensor in tensors:
            if any(key in shard.header for shard in shards):
                raise ValueError(f"{key} is written twice")
            if not shards or shards[-1].is_full(tensor.nbytes, max_shard_bytes):
                if shards:
                    shards[-1].close()
                shards.append(_Shard(out_dir / f".tmp-model-{len(shards)}.safetensors"))
            shards[-1].add(key, tensor)
        if not shards:
            raise ValueError("no tensors to write")
        shards[-1].close()
    except BaseException:
        for shard in shards:
            shard.discard()
        raise
    return _name_shards(out_dir, shards)


class _Shard:
    """One safetensors file being written: data first, header last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, dict[str, object]] = {}
        self.size = 0
        self._header_bytes = 64
        self._file: BinaryIO = path.open("wb")
        self._file.seek(8 + _HEADER_ROOM)

    def is_full(self, more: int, limit: float) -> bool:
        too_large = self.size > 0 and self.size + more > limit
        return too_large or self._header_bytes > _HEADER_ROOM - 1024

    def add(self, key: str, tensor: np.ndarray) -> None:
        entry = {
            "dtype": _SAFETENSORS_NAME[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [self.size, self.size + tensor.nbytes],
        }
        self._file.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
        self.header[key] = entry
        self.size += tensor.nbytes
        self._header_bytes += len(json.dumps({key: entry}))

    def close(self) -> None:
        header = json.dumps({"__metadata__": {"format": "pt"}} | self.header).encode()
        self._file.seek(0)
        self._file.write(_HEADER_ROOM.to_bytes(8, "little") + header.ljust(_HEADER_ROOM))
        self._file.close()

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


def _name_shards(out_dir: Path, shards: list[_Shard]) -> list[Path]:
    if len(shards) == 1:
        return [shards[0].path.replace(out_dir / SINGLE_FILE)]
    names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    files = [shard.path.replace(out_dir / name) for shard, name in zip(shards, names, strict=True)]
    index = {
        "metadata": {"total_size": sum(shard.size for shard in shards)},
        "weight_map": {
            key: name for shard, name in zip(shards, names, strict=True) for key in shard.header
        },
    }
    temporary = out_dir / f".tmp-{INDEX_FILE}"
    temporary.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [*files, temporary.replace(out_dir / INDEX_FILE)]
