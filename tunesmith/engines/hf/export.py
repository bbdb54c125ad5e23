"""From trained weights to a checkpoint's tensors, one at a time, by the checkpoint's own keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from tunesmith.errors import UserError
from tunesmith.models.adapter import Adapter, write_peft
from tunesmith.models.catalog import TEXT_PREFIX, weight_prefix
from tunesmith.models.tensor_files import TensorFiles
from tunesmith.models.weights import HEADS, write_weights
from tunesmith.recipe.schema import LoraSection

_DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"


def write(
    out_dir: Path,
    model_dir: Path,
    trained: Mapping[str, np.ndarray],
    lora: LoraSection | None,
    *,
    kind: str,
    dtype: str,
) -> None:
    """Write the weights of an export into an existing, empty directory.

    Args:
        out_dir: where to.
        model_dir: the base model, which gives the frozen weights, and a multimodal one's towers.
        trained: float32 arrays by the names that they have in the text decoder.
        lora: the adapters' figures if adapters were trained.
        kind: `merged` for a whole model, `adapter` for PEFT's format.
        dtype: `base`, `float32` or `bfloat16`; adapters are float32 always.
    """
    files = TensorFiles(model_dir)
    prefix = weight_prefix(files, model_dir / "config.json")
    if kind == "adapter":
        assert lora is not None
        # As transformers 5 names the modules of the whole model, multimodal or not.
        living = TEXT_PREFIX if prefix == TEXT_PREFIX else "model.language_model."
        write_peft(out_dir, _adapter(trained, lora, living), lora, model_dir)
        return
    write_weights(out_dir, _tensors(files, prefix, trained, lora, dtype))


def _adapter(trained: Mapping[str, np.ndarray], lora: LoraSection, prefix: str) -> Adapter:
    """Trained pairs by the path of their module, the decoder's prefix replaced by another."""
    pairs = {}
    for name, a in trained.items():
        if name.endswith(_A):
            stem = name.removesuffix(_A)
            pairs[prefix + stem.removeprefix(TEXT_PREFIX)] = a, trained[stem + _B]
    return Adapter(pairs, lora.alpha / lora.r)


def _tensors(
    files: TensorFiles,
    prefix: str,
    trained: Mapping[str, np.ndarray],
    lora: LoraSection | None,
    dtype: str,
) -> Iterator[tuple[str, np.ndarray]]:
    """The base checkpoint's tensors, those that were trained replaced or added to."""
    adapter = _adapter(trained, lora, prefix) if lora else Adapter({}, 0.0)
    whole = {} if lora else {prefix + k.removeprefix(TEXT_PREFIX): v for k, v in trained.items()}
    left = {f"{path}.weight" for path in adapter.pairs} | whole.keys()
    for key in files:
        if key in HEADS:  # the embedding once more
            continue
        tensor = whole.get(key)
        path = key.removesuffix(".weight")
        if tensor is None:
            tensor = files.read(key)
            if path in adapter.pairs:
                a, b = adapter.pairs[path]
                tensor = tensor.astype(np.float32) + np.float32(adapter.scale) * (b @ a)
        left.discard(key)
        wanted = files.dtype(key) if dtype == "base" or not key.startswith(prefix) else dtype
        yield key, tensor.astype(_DTYPES.get(wanted, np.dtype(wanted)), copy=False)
    if left:
        raise UserError(f"the checkpoint has no place for {', '.join(sorted(left)[:5])}")
