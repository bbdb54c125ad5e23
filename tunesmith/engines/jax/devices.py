"""Devices, processes and where arrays lie on them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tunesmith.engines.contract import Estimate, Say
from tunesmith.engines.loop import micro_batches
from tunesmith.errors import UserError
from tunesmith.hardware import cpu_multiplies_bf16, peak_process_bytes
from tunesmith.recipe.schema import Recipe

DATA_AXIS = "data"


def processes() -> None:
    """None to start: JAX drives all devices of a machine from a single process."""


def launch(count: int, arguments: Sequence[str]) -> int:
    """Never called: see `processes`."""
    raise NotImplementedError(f"JAX needs no {count} processes for {arguments}")


def estimate(recipe: Recipe, config_dir: Path, *, device_count: int, say: Say) -> Estimate:
    """Memory of a training step; see `engines.contract.Engine.estimate`.

    Raises:
        UserError: always, so far.
    """
    raise UserError(
        "the JAX engine has no estimate yet",
        "`--set engine=hf` counts the Hugging Face engine's memory instead.",
    )


def start() -> bool:
    """Join the other processes of the run, if the environment says that there are any.

    Returns whether this process is the one that writes the run's files.

    JAX's own variables, or those that GKE sets on TPU hosts. A single process joins nothing, so
    that a laptop needs no set-up.
    """
    names = ("JAX_COORDINATOR_ADDRESS", "COORDINATOR_ADDRESS", "MEGASCALE_COORDINATOR_ADDRESS")
    hosts = [h for h in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if h]
    if not jax.distributed.is_initialized() and (
        any(os.environ.get(name) for name in names) or len(hosts) > 1
    ):
        count, index = os.environ.get("JAX_NUM_PROCESSES"), os.environ.get("JAX_PROCESS_ID")
        jax.distributed.initialize(
            num_processes=int(count) if count else None, process_id=int(index) if index else None
        )
    _keep_compiled_programs()
    return jax.process_index() == 0


def _keep_compiled_programs() -> None:
    """Keep compiled programs from run to run, so that a second start is quick."""
    root = Path(os.environ.get("TUNESMITH_CACHE") or "~/.cache/tunesmith").expanduser()
    jax.config.update("jax_compilation_cache_dir", str(root / "xla"))


def make_mesh(recipe: Recipe) -> Mesh:
    """The mesh that `parallel` asks for.

    Raises:
        UserError: the axes do not fit the devices, or the batch does not fit the axes.
    """
    parallel, devices = recipe.parallel, jax.device_count()
    for axis in ("fsdp", "tensor", "slices"):
        if getattr(parallel, axis) > 1:
            raise UserError(
                f"the JAX engine does not offer parallel.{axis} above 1 yet",
                "Leave it out: every device then holds the weights and takes a share of the rows.",
            )
    if parallel.data not in (None, devices):
        raise UserError(
            f"parallel.data is {parallel.data}, but there are {devices} devices",
            f"Set it to {devices}, or leave it out.",
        )
    micro_batches(recipe, hosts=jax.process_count(), devices=devices)
    return all_devices()


def all_devices() -> Mesh:
    """Every device of every process along the data axis."""
    return Mesh(np.array(jax.devices()), (DATA_AXIS,))


def settle_dtype(compute_dtype: str) -> str:
    """`train.compute_dtype`, with `auto` settled for the devices at hand."""
    if compute_dtype != "auto":
        return compute_dtype
    device = jax.devices()[0]
    if device.platform == "cpu":
        # jaxlib reaches AMX from 0.12 on; before, bfloat16 gained nothing on a CPU.
        modern = tuple(int(part) for part in jax.__version__.split(".")[:2]) >= (0, 12)
        return "bfloat16" if cpu_multiplies_bf16() and modern else "float32"
    if device.platform == "gpu" and float(getattr(device, "compute_capability", "8.0")) < 8.0:
        return "float32"
    return "bfloat16"


def replicated(mesh: Mesh) -> NamedSharding:
    """Sharding of an array that every device of the mesh holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def place_rows(mesh: Mesh, local: np.ndarray, *, axis: int) -> jax.Array:
    """A global array whose `axis` is split over all devices, from this process's part of it."""
    spec = PartitionSpec(*(None,) * axis, DATA_AXIS)
    return jax.make_array_from_process_local_data(NamedSharding(mesh, spec), local)


def to_host(array: jax.Array) -> np.ndarray:
    """A replicated array as numpy."""
    return np.asarray(array.addressable_data(0))


def peak_bytes() -> int:
    """Most memory used so far on one device, or by the process where devices are the CPU."""
    stats = jax.local_devices()[0].memory_stats()
    return int(stats["peak_bytes_in_use"]) if stats else peak_process_bytes()
