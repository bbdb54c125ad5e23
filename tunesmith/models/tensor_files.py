"""The safetensors files of a Hugging Face directory, opened as one set of tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (makes bfloat16 known to numpy by name)
import numpy as np

from tunesmith.errors import UserError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# Safetensors' names for the types that weights may be stored in, and numpy's.
DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def read_json(path: Path) -> Any:
    """Parses a JSON file.

    Raises:
        UserError: the file is missing or not JSON; the message names file and line.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno} is not valid JSON: {error.msg}") from None


class TensorFiles:
    """Tensors by checkpoint key, read from disk one at a time.

    Reads `NAME.safetensors`, or the shards that `NAME.safetensors.index.json` names.

    Args:
        directory: where the files are.
        name: "model", or "adapter_model" for PEFT's.

    Raises:
        UserError: files are missing, cut short, contradict the index or lie outside the directory.
    """

    def __init__(self, directory: str | Path, name: str = "model") -> None:
        self.directory = Path(directory)
        self._reader_of: dict[str, Any] = {}
        single = self.directory / f"{name}.safetensors"
        index = self.directory / f"{name}.safetensors.index.json"
        if single.exists() and index.exists():
            raise UserError(
                f"{self.directory} holds both {single.name} and {index.name}",
                "Remove the one left over from an earlier save.",
            )
        if single.exists():
            self._open(single)
        elif index.exists():
            self._open_shards(index)
        else:
            raise UserError(f"{self.directory} has no {single.name}", _hint(self.directory))

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader_of)

    def __contains__(self, key: str) -> bool:
        return key in self._reader_of

    def shape(self, key: str) -> tuple[int, ...]:
        """The tensor's shape, from the header alone."""
        return tuple(self._reader_of[key].get_slice(key).get_shape())

    def dtype(self, key: str) -> str:
        """Numpy's name of the stored type, or safetensors' own where weights never have it."""
        stored: str = self._reader_of[key].get_slice(key).get_dtype()
        return DTYPES.get(stored, stored)

    def read(self, key: str) -> np.ndarray:
        """The tensor in its stored type, as a copy of its own."""
        return self._reader_of[key].get_tensor(key)

    def _open(self, path: Path) -> set[str]:
        from safetensors import SafetensorError, safe_open

        try:
            reader = safe_open(str(path), framework="np")
        except FileNotFoundError:
            raise UserError(f"{path} is missing", "Download the model again.") from None
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"{path} cannot be read: {error}", "The file is damaged or cut short; get it again."
            ) from None
        keys = set(reader.keys())
        self._reader_of |= dict.fromkeys(keys, reader)
        return keys

    def _open_shards(self, index: Path) -> None:
        content = read_json(index)
        shard_of = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(shard_of, dict) or not shard_of:
            raise UserError(f"{index} has no `weight_map` of tensor names to files")
        shards = sorted(set(map(str, shard_of.values())))
        for shard in shards:
            if not shard.endswith(".safetensors") or Path(shard).name != shard or "\\" in shard:
                raise UserError(
                    f"{index} names {shard!r}, which is not a safetensors file beside it",
                    "A model's shards lie in its own directory; do not use this index.",
                )
        for shard in shards:
            found = self._open(self.directory / shard)
            named = {key for key, file in shard_of.items() if file == shard}
            if found != named:
                odd = ", ".join(sorted(found ^ named)[:5])
                raise UserError(f"{index} and {shard} disagree about {odd}", "Get the model again.")


def _hint(directory: Path) -> str | None:
    if any(directory.glob("*.bin")):
        return "It has PyTorch pickles; load it in transformers and save_pretrained() it again."
    return None
