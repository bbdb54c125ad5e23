"""Reads a GGUF file: its metadata at once, its tensors one at a time.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
The `gguf` package has a reader too, but builds a numpy view of each of the 262,144 pieces of
Gemma's vocabulary: 15 s for the 270M, against 0.5 s here. Dequantisation is that package's.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.errors import UserError

# Value types in the order of their numbers; 8 is a string, 9 an array.
_SCALARS = ["B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d"]
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies: `shape` is row-major, `start` and `nbytes` are in the file."""

    shape: tuple[int, ...]
    quantization: int
    start: int
    nbytes: int


class GgufFile:
    """One GGUF file.

    Attributes:
        metadata: by key, e.g. "gemma3.block_count"; arrays of numbers are numpy arrays.
        tensors: by llama.cpp's names, e.g. "blk.0.attn_q.weight".

    Raises:
        UserError: the file is missing, not a GGUF, of an unknown version, or cut short.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
            raise UserError(f"{self.path} cannot be read: {error}") from None
        self._at = 0
        if self._bytes[:4] != b"GGUF":
            raise UserError(f"{self.path} is not a GGUF file (it does not begin with GGUF)")
        try:
            self._read_header()
        except (struct.error, LookupError, ValueError, TypeError, ArithmeticError) as error:
            raise UserError(
                f"{self.path} is damaged or cut short: its header breaks off near byte {self._at}",
                "Get the file again.",
            ) from error
        self._refuse_cut_file()

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32.

        Raises:
            UserError: its quantization is one that the `gguf` package cannot undo.
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        kind = GGMLQuantizationType(tensor.quantization)
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        values = np.empty(math.prod(tensor.shape), np.float32)
        # In runs that fit the processor's cache: over whole matrices dequantize() takes a few rows
        # at a time and needs the memory twice.
        blocks_per_run = max(1, 2**17 // block_size)
        try:
            for block in range(0, tensor.nbytes // block_bytes, blocks_per_run):
                count = min(blocks_per_run, tensor.nbytes // block_bytes - block)
                start = tensor.start + block * block_bytes
                run = np.frombuffer(self._bytes, np.uint8, count * block_bytes, start)
                values[block * block_size :][: count * block_size] = dequantize(run, kind)
        except NotImplementedError:
            raise UserError(
                f"{self.path}: {name} is quantized as {kind.name}, which cannot be undone here",
                "Use a file in another quantization, e.g. Q8_0, or the original weights.",
            ) from None
        return values.reshape(tensor.shape)

    def _read_header(self) -> None:
        self._at = 4
        version = self._number("I")
        if version not in (2, 3):
            raise UserError(f"{self.path} is GGUF version {version}; 2 and 3 can be read")
        tensor_count, metadata_count = self._number("Q"), self._number("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(metadata_count):
            key = self._string()
            self.metadata[key] = self._value(self._number("I"))
        infos = [self._tensor_info() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        data_start = -(-self._at // alignment) * alignment
        self.tensors: dict[str, GgufTensor] = {
            name: GgufTensor(shape, kind, data_start + offset, _nbytes(shape, kind))
            for name, shape, kind, offset in infos
        }

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _string(self) -> str:
        length = self._number("Q")
        self._at += length
        if self._at > len(self._bytes):
            raise IndexError("a string ends past the end of the file")
        return self._bytes[self._at - length : self._at].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        item, count = self._number("I"), self._number("Q")
        if item in (_STRING, _ARRAY):
            return [self._value(item) for _ in range(count)]
        values = np.frombuffer(self._bytes, f"<{_SCALARS[item]}", count, self._at)
        self._at += values.nbytes
        return values

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dims = [self._number("Q") for _ in range(self._number("I"))]
        kind, offset = self._number("I"), self._number("Q")
        return name, tuple(reversed(dims)), kind, offset  # GGUF names the fastest axis first

    def _refuse_cut_file(self) -> None:
        needed = max((t.start + t.nbytes for t in self.tensors.values()), default=0)
        if needed > len(self._bytes):
            raise UserError(
                f"{self.path} is cut short: it has {len(self._bytes):,} of {needed:,} bytes",
                "Get the file again.",
            )


def _nbytes(shape: tuple[int, ...], kind: int) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block_size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    return math.prod(shape) // block_size * block_bytes
