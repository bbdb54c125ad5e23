"""Types of the products: how a forward pass is run in bfloat16, and how in plain float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from peft.helpers import disable_input_dtype_casting
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from tunesmith.hardware import cpu_multiplies_bf16

_NAMES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def settle_dtype(compute_dtype: str, device: torch.device) -> torch.dtype:
    """`train.compute_dtype`, with `auto` settled for the device; float16 is never an answer."""
    if compute_dtype != "auto":
        return _NAMES[compute_dtype]
    if device.type == "cuda":
        # Without emulation: on GPUs before Ampere bfloat16 is slower than float32.
        return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float32
    return torch.bfloat16 if cpu_multiplies_bf16() else torch.float32


def sharding_policy(dtype: torch.dtype) -> MixedPrecisionPolicy:
    """Weights are gathered in the compute type; gradients are summed over devices in float32."""
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


@contextmanager
def compute(model: nn.Module, dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Run forward passes in `dtype` from float32 master weights.

    FSDP gathers the weights in that type already. Elsewhere torch's autocast does it, and PEFT is
    kept from turning the adapters' input into float32 first, which would double its memory.
    """
    if dtype == torch.float32 or is_sharded(model):
        yield
        return
    with torch.autocast(device.type, dtype=dtype), disable_input_dtype_casting(model):
        yield


def is_sharded(model: nn.Module) -> bool:
    """Whether FSDP2 is really at work."""
    return isinstance(model, FSDPModule)


@contextmanager
def float32(model: nn.Module) -> Iterator[None]:
    """Run forward passes in float32 from the weights as they are in memory, without gradients."""
    with ExitStack() as stack:
        if is_sharded(model):
            stack.enter_context(_gathered_in_float32(model))
        else:
            for module in model.modules():
                if any(p.dtype == torch.bfloat16 for p in module.parameters(recurse=False)):
                    stack.enter_context(_upcast_while_running(module))
        yield


@contextmanager
def _upcast_while_running(module: nn.Module) -> Iterator[None]:
    """Hold one module's own weights in float32 while it runs: never more than one module's."""
    kept: dict[str, torch.Tensor] = {}

    def before(module: nn.Module, inputs: Any) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            kept[name] = parameter.data
            parameter.data = parameter.data.float()

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            parameter.data = kept.pop(name)

    handles = (
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _gathered_in_float32(model: nn.Module) -> Iterator[None]:
    """Have FSDP2 gather float32.

    torch offers no public way to change a policy once weights are sharded; this sets what
    `FSDPParamGroup._init_mp_dtypes` sets (torch 2.13), and drops the buffers of the other type. A
    two-process test compares the result with a single process.
    """
    sharded: list[Any] = [module for module in model.modules() if isinstance(module, FSDPModule)]
    states = {id(state): state for state in (module._get_fsdp_state() for module in sharded)}
    policies = {key: state._mp_policy for key, state in states.items()}

    def set_policies(choose: Any) -> None:
        for module in sharded:
            module.reshard()
        for key, state in states.items():
            state._mp_policy = choose(key)
            for group in state._fsdp_param_groups:
                group.mp_policy = choose(key)
                for parameter in group.fsdp_params:
                    parameter.init_dtype_attrs(choose(key))
                    parameter.all_gather_outputs = []
                    if hasattr(parameter, "_unsharded_param"):
                        del parameter._unsharded_param

    set_policies(lambda key: sharding_policy(torch.float32))
    try:
        yield
    finally:
        set_policies(policies.__getitem__)
