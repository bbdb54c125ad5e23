"""Memory of a training step on each GPU, from the model's shape alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM
from trl.kernels import chunked_logprob
from trl.trainer.utils import add_fused_lm_head

from tunesmith.data.types import Batch
from tunesmith.engines.contract import Estimate, Say
from tunesmith.engines.hf import build, devices, precision
from tunesmith.engines.hf.families import Family, check_length, choose_attention, find_family
from tunesmith.engines.hf.live_bytes import COMMUNICATION, GRADIENTS, LiveBytes
from tunesmith.engines.hf.session import HfSession
from tunesmith.engines.loop import micro_batches
from tunesmith.errors import UserError
from tunesmith.recipe.schema import Recipe

Phase = Callable[[str, str], AbstractContextManager[None]]

_SAY_EVERY = 5.0  # seconds
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")

NOT_COUNTED = (
    "what CUDA, cuBLAS and NCCL take for themselves on each GPU, and workspaces inside kernels",
    "gaps between the blocks of torch's allocator",
)


def estimate(
    recipe: Recipe, config_dir: Path, *, device_count: int, say: Say, triton: bool = True
) -> Estimate:
    """Run one training step of the real shape with tensors that have no memory, and count.

    The step is the first process's, whose shards are the largest where weights do not divide
    evenly. It goes through the functions that training goes through, in torch's FakeTensorMode and
    a process group that sends nothing. Every sequence is full and every token a target.

    Args:
        recipe: what would be trained.
        config_dir: holds the model's config.json; no weights are needed.
        device_count: GPUs in all.
        say: told how far it is.
        triton: count the head as on a GPU, where TRL's kernels work in place; else as on a CPU.

    Raises:
        UserError: the recipe does not fit the model or the devices, or there is no estimate for it.
    """
    begun = time.perf_counter()
    family, text_config, attention, notes = _check(recipe, config_dir)
    # Every GPU of the table has bfloat16.
    wanted = recipe.train.compute_dtype.replace("auto", "bfloat16")
    dtype = precision.settle_dtype(wanted, torch.device("cpu"))
    with _pretended_processes(device_count):
        accelerator = devices.make_accelerator(recipe, family, dtype)
        say(f"building {family.name} without memory")
        model = _build(recipe, family, text_config, attention, dtype)
        if recipe.parallel.fsdp > 1:
            plugin: Any = accelerator.state.fsdp_plugin
            plugin.cpu_ram_efficient_loading = False  # nothing is loaded
            model = fsdp2_prepare_model(accelerator, model)
        with FakeTensorMode(allow_non_fake_inputs=True), ExitStack() as stack:
            if triton:
                stack.enter_context(_head_in_place())
            model = model.to_empty(device="cpu")
            model.tie_weights()  # type: ignore[operator]
            optimizer = build.make_optimizer(model, recipe.train, fused=True)
            session = HfSession(
                config_dir, family, accelerator, model, text_config, dtype, optimizer, recipe.lora
            )
            live = _count(session, recipe, say)
    cache = _cache_bytes(recipe, text_config)
    if cache:
        notes.append(
            "answers generated in evaluations, whose keys and values take up to "
            f"{cache / 2**30:.1f} GiB beside the weights: eval.generation_batch_size lowers it"
        )
    return Estimate(
        device_count=device_count,
        peak_bytes=live.peak,
        by_kind=live.peak_by_kind,
        phase=live.peak_phase,
        cache_bytes=cache,
        not_counted=(*NOT_COUNTED, *notes),
        seconds=time.perf_counter() - begun,
    )


def _check(recipe: Recipe, config_dir: Path) -> tuple[Family, Any, str, list[str]]:
    """What training checks before it loads weights, and notes on what is counted otherwise."""
    family, text_config = find_family(config_dir)
    check_length(text_config, recipe.data.max_length)
    if recipe.lora is not None:
        build.check_lora(recipe.lora, family, text_config)
        if recipe.lora.quantize_base is not None:
            raise UserError(
                "there is no estimate for 4-bit weights (lora.quantize_base)",
                "Without it the estimate is an upper bound: --set lora.quantize_base=null",
            )
    wanted, notes = recipe.train.attention, []
    if wanted == "flash_attention_2":
        wanted = "sdpa"
        notes.append(
            "flash attention 2: counted as torch's attention with a mask, which takes more"
        )
    return family, text_config, choose_attention(family, text_config, wanted), notes


@contextmanager
def _pretended_processes(count: int) -> Iterator[None]:
    """Be the first of so many processes, with a GPU each as far as Accelerate can tell."""
    before = dict(os.environ)
    for name in before:  # Accelerate leaves some behind, and reads what it finds
        if name in _ENVIRONMENT or name.startswith(("ACCELERATE_", "FSDP_")):
            del os.environ[name]
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        if count > 1:
            os.environ |= dict(zip(_ENVIRONMENT, ("0", str(count), "0", str(count)), strict=True))
            dist.init_process_group("fake", rank=0, world_size=count, store=FakeStore())
            PartialState(cpu=True)
            # Accelerate shards on GPUs only; fake tensors are of a device without a number.
            PartialState._shared_state |= {
                "distributed_type": DistributedType.MULTI_GPU,
                "device": torch.device("cpu"),
            }
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ.clear()
        os.environ |= before


def _build(
    recipe: Recipe, family: Family, text_config: Any, attention: str, dtype: torch.dtype
) -> nn.Module:
    """The model as `session.open_trainer` loads it, on the meta device."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            text_config,
            dtype=dtype if recipe.lora else torch.float32,
            attn_implementation=attention,
        )
    add_fused_lm_head(model)
    if recipe.lora is not None:
        build.attach_lora(model, recipe.lora, seed=recipe.train.seed)
    if recipe.train.remat == "layer":
        build.recompute_layers(model)
    return model


@contextmanager
def _head_in_place() -> Iterator[None]:
    """Without Triton the loss folds its tiles in torch, in temporaries that no GPU would make."""
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    with ExitStack() as stack:
        for name in ("_forward_tile", "_backward_tile", "_addmm_fp32"):
            stack.enter_context(patch.object(chunked_logprob, name, nothing))
        yield


def _count(session: HfSession, recipe: Recipe, say: Say) -> LiveBytes:
    """The bytes of a step that finds moments and, after the first pass, gradients in place."""
    model, optimizer = session.module, session.optimizer
    assert optimizer is not None
    trained = list(session.trainable.values())
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    if micro_batches(recipe, hosts=1, devices=session.accelerator.num_processes) == 1:
        optimizer.zero_grad()

    live = LiveBytes()
    for kind, tensors in (
        ("parameters", model.parameters()),
        ("buffers", model.buffers()),
        ("optimizer", (t for state in optimizer.state.values() for t in state.values())),
        (GRADIENTS, (p.grad for p in trained if p.grad is not None)),
        (COMMUNICATION, _buckets(session, trained)),
    ):
        for tensor in tensors:
            live.add(tensor, kind)
    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(lambda p: live.add(p.grad, GRADIENTS))
    _tell_layers(session, recipe, say)
    with live.counting():
        last_pass(session, recipe, live.phase)
    return live


def _buckets(session: HfSession, trained: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What DistributedDataParallel holds: a second copy of the gradients, which it reduces."""
    if session.accelerator.num_processes > 1 and not precision.is_sharded(session.module):
        yield from map(torch.zeros_like, trained)


def last_pass(session: HfSession, recipe: Recipe, phase: Phase) -> None:
    """The last pass of an optimizer step, as `train.HfTrainer.step` takes it, on full sequences.

    Args:
        session: of a trainer.
        recipe: gives the size of the batch.
        phase: entered with a name of the phase and the kind of what is made in it.
    """
    assert session.optimizer is not None
    count = session.accelerator.num_processes
    sequences = recipe.train.micro_batch_size or recipe.train.batch_size // count
    shape = sequences, recipe.data.max_length
    # Two segments in each, as packing makes them: attention then needs a mask.
    places = np.arange(shape[1], dtype=np.int32)
    second = places >= shape[1] // 2
    positions = np.where(second, places - shape[1] // 2, places)
    segments, positions = (np.tile(row, (sequences, 1)) for row in (1 + second, positions))
    tokens = np.zeros(shape, np.int32)
    batch = Batch(tokens, tokens, np.ones(shape, bool), segments, positions)
    model = session.model
    model.train()
    with phase("forward", "activations"):
        loss = session.loss_sum(model, batch)
    with phase("backward", "activations"):
        session.accelerator.backward(loss)
        del loss
    with phase("optimizer step", "optimizer"):
        torch.nn.utils.clip_grad_norm_(session.trainable.values(), 1.0)
        session.optimizer.step()
        session.optimizer.zero_grad()


def _tell_layers(session: HfSession, recipe: Recipe, say: Say) -> None:
    """Tell now and then which layer is being counted."""
    layers = [
        m for m in session.module.modules() if type(m).__name__ == session.family.decoder_layer
    ]
    # FSDP renames the class of what it wraps.
    layers = layers or list(session.module.base_model.layers)
    total = len(layers) * (2 if recipe.train.remat == "layer" else 1)
    done, said = 0, time.perf_counter()

    def tick(*_: Any) -> None:
        nonlocal done, said
        done += 1
        if time.perf_counter() - said > _SAY_EVERY:
            said = time.perf_counter()
            say(f"counting a step: layer {done} of {total}")

    for layer in layers:
        layer.register_forward_pre_hook(tick)


def _cache_bytes(recipe: Recipe, text_config: Any) -> int:
    """Keys and values of the answers that one device generates at once, in bfloat16; 0 if none."""
    if not (recipe.eval.prompts or recipe.eval.text_to_sql):
        return 0
    tokens = recipe.data.max_length + recipe.eval.generation.max_new_tokens
    shared = getattr(text_config, "num_kv_shared_layers", 0) or 0
    total = 0
    for index in range(text_config.num_hidden_layers - shared):
        layer = getattr(text_config, "per_layer_config", {index: text_config})[index]
        held = tokens
        if text_config.layer_types[index] == "sliding_attention":
            held = min(tokens, text_config.sliding_window)
        total += held * 2 * layer.num_key_value_heads * layer.head_dim * torch.bfloat16.itemsize
    return total * recipe.eval.generation_batch_size
