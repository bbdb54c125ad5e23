"""Processes and devices: who takes part, and how weights and rows are shared."""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin, ParallelismConfig

from tunesmith.engines.hf.families import Family
from tunesmith.engines.hf.precision import sharding_policy
from tunesmith.engines.hf.versions import check_versions
from tunesmith.engines.loop import micro_batches
from tunesmith.errors import UserError
from tunesmith.hardware import peak_process_bytes
from tunesmith.recipe.schema import Recipe


def start() -> bool:
    """Join the run's other processes, which a launcher's environment names (`RANK`, `WORLD_SIZE`).

    Returns whether this process is the one that writes the run's files.

    Raises:
        UserError: a library is older than what the engine was tried with.
    """
    import transformers

    check_versions()
    atexit.register(_leave)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    transformers.logging.set_verbosity_error()  # what matters of its warnings is checked here
    transformers.logging.disable_progress_bar()
    return PartialState(cpu=not torch.cuda.is_available()).is_main_process


def _leave() -> None:
    """Leave the processes of the run in order, as torch asks for before Python ends."""
    if dist.is_initialized():
        dist.destroy_process_group()


def world() -> int:
    """Processes of the run, each with a device of its own."""
    return PartialState(cpu=not torch.cuda.is_available()).num_processes


def layout(recipe: Recipe, count: int) -> tuple[int, int]:
    """Groups of devices that hold the weights, and devices that share them in each.

    Args:
        recipe: gives `parallel`.
        count: devices in all.

    Raises:
        UserError: `parallel` asks for what the devices cannot give.
    """
    parallel = recipe.parallel
    for axis in ("tensor", "slices"):
        if getattr(parallel, axis) > 1:
            raise UserError(
                f"the Hugging Face engine does not offer parallel.{axis}",
                "Use parallel.fsdp, which shards weights and moments over devices.",
            )
    have = f"{count} device{'s' * (count != 1)}"
    if count % parallel.fsdp or parallel.data not in (None, count // parallel.fsdp):
        asked = f"parallel.fsdp {parallel.fsdp}"
        asked += f" × parallel.data {parallel.data}" if parallel.data else ""
        raise UserError(
            f"{asked} does not fit {have}",
            f"Their product must be {count}: set parallel.fsdp to {count} to shard the weights "
            "over all of them, or to 1 for whole weights on each.",
        )
    hosts = max(1, count // int(os.environ.get("LOCAL_WORLD_SIZE") or count))
    micro_batches(recipe, hosts=hosts, devices=count)
    return count // parallel.fsdp, parallel.fsdp


def make_accelerator(
    recipe: Recipe | None = None, family: Family | None = None, dtype: torch.dtype | None = None
) -> Accelerator:
    """Accelerate for a run: sharded, replicated or alone; without a recipe, to score alone.

    Accelerate's own mixed precision stays off: which types are used where is `precision`'s.

    Raises:
        UserError: the recipe's `parallel` does not fit the processes.
    """
    cpu = not torch.cuda.is_available()
    if recipe is None or family is None:
        return Accelerator(cpu=cpu)
    groups, sharded = layout(recipe, world())
    if sharded == 1:
        return Accelerator(cpu=cpu)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[family.decoder_layer],
        mixed_precision_policy=sharding_policy(dtype or torch.float32),
        # One process of a node reads the weights, and only that one holds them whole.
        cpu_ram_efficient_loading=True,
        state_dict_type="SHARDED_STATE_DICT",
        activation_checkpointing=False,  # transformers' own: `build.recompute_layers`
    )
    shape: dict[str, Any] = {}
    if groups > 1:
        shape["parallelism_config"] = ParallelismConfig(
            dp_replicate_size=groups, dp_shard_size=sharded
        )
    return Accelerator(cpu=cpu, fsdp_plugin=plugin, **shape)


def peak_bytes() -> int:
    """Most memory used so far on this process's GPU, or by the process where there is none."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return peak_process_bytes()
