"""Counts the bytes that torch holds while operations run, without a device that has them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed._tools.fake_collectives  # gives collectives to fake tensors
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

COMMUNICATION, GRADIENTS = "communication", "gradients"

_REDUCE_SCATTER = torch.ops.c10d._reduce_scatter_base_.default


class LiveBytes(TorchDispatchMode):
    """The storages alive under a FakeTensorMode, from when they are made to when they are freed.

    The rule is that of torch.distributed's `FSDPMemTracker` (2.13): every storage that an operation
    returns counts until nothing refers to it. That one stops at modules that FSDP gathers as one
    group, which Accelerate makes of the embedding, the last norm and the head. What a kernel takes
    for itself while it runs is not seen.

    Attributes:
        now: bytes alive.
        by_kind: the same by kind.
        peak: most bytes alive at once.
        peak_by_kind: bytes by kind at that moment.
        peak_phase: the phase of that moment.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.by_kind: Counter[str] = Counter()
        self.peak_by_kind: dict[str, int] = {}
        self.peak_phase = ""
        self._phase = self._kind = ""
        self._storages: dict[int, tuple[int, str]] = {}  # by address of the C++ storage
        self._paused = False

    def add(self, tensor: torch.Tensor, kind: str) -> None:
        """Count a tensor as of this kind, whatever it counted as before."""
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        storage = tensor.untyped_storage()
        self._record(storage, storage.nbytes(), kind)

    @contextmanager
    def phase(self, name: str, kind: str) -> Iterator[None]:
        """A phase of the step; what is made in it is of this kind."""
        before = self._phase, self._kind
        self._phase, self._kind = name, kind
        try:
            yield
        finally:
            self._phase, self._kind = before

    @contextmanager
    def counting(self) -> Iterator[LiveBytes]:
        """Count all operations meanwhile."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            done = resize(storage, size)
            if not self._paused:  # FSDP frees gathered weights, and takes them again, in this way
                self._record(storage, size, COMMUNICATION)
            return done

        with (
            patch.object(torch.UntypedStorage, "resize_", resized),
            patch.object(FSDPParamGroup, "unshard", self._as_communication("unshard")),
            patch.object(
                FSDPParamGroup, "wait_for_unshard", self._as_communication("wait_for_unshard")
            ),
            patch.object(FSDPParamGroup, "post_backward", self._as_communication("post_backward")),
            # DTensor works out shapes with fake tensors of the whole size, in our own fake mode.
            patch.object(ShardingPropagator, "_fake_mode_lock", _Pause(self)),
            self,
        ):
            yield self

    def _as_communication(self, name: str) -> Callable[..., Any]:
        method = getattr(FSDPParamGroup, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.phase(self._phase, COMMUNICATION):
                return method(*args, **kwargs)

        return run

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:  # it will call the operations on its local tensors
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        if not self._paused:
            for tensor in tree_iter(out):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in self._storages:
                        self._record(storage, storage.nbytes(), self._kind)
            if func is _REDUCE_SCATTER:
                self.add(args[0], GRADIENTS)
        return out

    def _record(self, storage: torch.UntypedStorage, size: int, kind: str) -> None:
        address = storage._cdata
        if address in self._storages:
            self._forget(address)
        else:
            weakref.finalize(storage, self._forget, address)
        self._storages[address] = size, kind
        self.by_kind[kind] += size
        self.now += size
        if self.now > self.peak:
            self.peak, self.peak_phase = self.now, self._phase
            self.peak_by_kind = {kind: size for kind, size in self.by_kind.items() if size}

    def _forget(self, address: int) -> None:
        size, kind = self._storages.pop(address)
        self.by_kind[kind] -= size
        self.now -= size


class _Pause:
    """Stops counting while entered."""

    def __init__(self, live: LiveBytes) -> None:
        self._live = live

    def __enter__(self) -> None:
        self._live._paused = True

    def __exit__(self, *_: object) -> None:
        self._live._paused = False
