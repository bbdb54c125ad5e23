"""Prints the most bytes that torch really held in the last pass of a step, as one process of two.

    python -m tests.peak_of_a_step RECIPE

What the CPU allocator handed out and took back, from torch's profiler, on top of what lay there
before. Started by `tests.fsdp_on_cpu.start_processes`.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any

from tests.fsdp_on_cpu import let_cpus_shard


def main(recipe_path: str) -> None:
    import torch
    from torch.distributed.tensor import DTensor
    from torch.profiler import ProfilerActivity, profile

    from tunesmith.engines.hf import open_trainer, start
    from tunesmith.engines.hf.estimate import last_pass
    from tunesmith.prepare import resolve_recipe_model
    from tunesmith.recipe.load import load_recipe

    start()
    loaded = load_recipe(recipe_path)
    session = open_trainer(loaded.recipe, resolve_recipe_model(loaded, print))

    def no_phase(name: str, kind: str) -> Any:
        return nullcontext()

    last_pass(session, loaded.recipe, no_phase)  # makes the moments
    optimizer: Any = session.optimizer
    held = [*session.module.parameters(), *session.module.buffers()]
    held += [value for state in optimizer.optimizer.state.values() for value in state.values()]
    local = (t.to_local() if isinstance(t, DTensor) else t for t in held)
    before = sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in local}.values()
    )
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        last_pass(session, loaded.recipe, no_phase)
    events: Any = measured.profiler
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in events.kineto_results.events()
        if event.name() == "[memory]"
    )
    now = peak = before
    for _, change in changes:
        now += change
        peak = max(peak, now)
    if session.accelerator.is_main_process:
        print(json.dumps({"peak": peak, "before": before}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    let_cpus_shard()
    main(sys.argv[1])
