"""Runs tunesmith as one of several CPU processes with real FSDP2 over gloo.

    python -m tests.fsdp_on_cpu train RECIPE …

Accelerate shards on accelerators alone. Here its state says that CPU processes are such, and all
that follows is the real thing. Started by `start_processes`, with a launcher's variables.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def start_processes(
    count: int,
    *arguments: str | Path,
    sharding: bool = True,
    module: str = "tests.fsdp_on_cpu",
) -> list[subprocess.Popen[str]]:
    """Start a command as `count` processes of one launch, by default `tunesmith`, sharding."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    module = module if sharding else "tunesmith"
    started = []
    for rank in range(count):
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                env=os.environ | variables,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return started


def finish(processes: Sequence[subprocess.Popen[str]], limit: float) -> list[tuple[str, str]]:
    """Wait for all; what each printed. None is left behind."""
    try:
        return [process.communicate(timeout=limit) for process in processes]
    finally:
        for process in processes:
            process.kill()


def let_cpus_shard() -> None:
    """Have Accelerate treat CPU processes as devices that FSDP is for."""
    from accelerate.state import DistributedType, PartialState

    make = PartialState.__init__

    def relabelled(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        state = PartialState._shared_state
        if state.get("distributed_type") == DistributedType.MULTI_CPU:
            state["distributed_type"] = DistributedType.MULTI_GPU

    PartialState.__init__ = relabelled


if __name__ == "__main__":
    let_cpus_shard()
    from tunesmith.cli import main

    sys.exit(main(sys.argv[1:]))
