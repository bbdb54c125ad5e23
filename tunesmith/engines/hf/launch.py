"""One process for each GPU, started by `tunesmith train` itself through Accelerate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from tunesmith.errors import UserError

# A launcher that starts every process by itself (torchrun, Accelerate, MPI) sets these.
_STARTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
# A launch on several machines by `tunesmith train` on each: ours, and those of torchrun in pods.
_NODES = ("NNODES", "PET_NNODES")
_NODE_RANK = ("NODE_RANK", "PET_NODE_RANK")
_ADDRESS = ("MASTER_ADDR", "PET_MASTER_ADDR")
_PORT = ("MASTER_PORT", "PET_MASTER_PORT")


def processes() -> int | None:
    """Processes to start on this machine, one for each visible GPU; None if this one is enough.

    Raises:
        UserError: the environment names a launch or other machines, but not this one's place.
    """
    given = [name for name in _STARTED if name in os.environ]
    if len(given) == len(_STARTED):
        return None
    if given:
        missing = [name for name in _STARTED if name not in given]
        raise UserError(
            f"the environment has a launcher's {', '.join(given)}, but not {', '.join(missing)}",
            "Set all of RANK, WORLD_SIZE and LOCAL_RANK for each process, or none of them.",
        )
    count = max(1, torch.cuda.device_count())
    return count if count > 1 or node_flags(os.environ) else None


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `tunesmith ARGUMENTS` in so many processes here, and join those of other machines.

    Returns:
        The exit status of the first process that failed, 0 if none did.

    Raises:
        UserError: the environment names other machines, but not this one's place among them.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    flags = launch_flags(count, node_flags(os.environ))
    parsed = launch_command_parser().parse_args([*flags, "--module", "tunesmith", *arguments])
    try:
        launch_command(parsed)
    except ChildFailedError as failed:
        first = min(failed.failures.values(), key=lambda failure: failure.timestamp)
        # Killed by a signal: as shells tell it.
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return 0


def launch_flags(count: int, nodes: Mapping[str, str]) -> list[str]:
    """Accelerate's flags for `count` processes on this machine, one of those in `nodes`."""
    total = count * int(nodes.get("num_machines", 1))
    # How weights are shared and in which type is for each process to say: `devices`, `precision`.
    flags = {"num_processes": str(total), "mixed_precision": "no", "dynamo_backend": "no"}
    flags |= nodes or {"num_machines": "1", "main_process_port": "0"}  # 0: any port that is free
    return ["--multi_gpu", *(part for name in flags for part in (f"--{name}", flags[name]))]


def node_flags(environment: Mapping[str, str]) -> dict[str, str]:
    """Accelerate's flags for this machine's place among several; none for one machine alone.

    Raises:
        UserError: NNODES is above 1 and the rest is missing.
    """
    count = int(_first(environment, _NODES) or 1)
    if count == 1:
        return {}
    rank, address = _first(environment, _NODE_RANK), _first(environment, _ADDRESS)
    if rank is None or address is None:
        raise UserError(
            f"NNODES is {count}, but NODE_RANK or MASTER_ADDR is not set",
            "Set on each machine NNODES, NODE_RANK (0 to NNODES-1), MASTER_ADDR (of the first) "
            "and, where 29500 is taken, MASTER_PORT.",
        )
    return {
        "num_machines": str(count),
        "machine_rank": rank,
        "main_process_ip": address,
        "main_process_port": _first(environment, _PORT) or "29500",
    }


def _first(environment: Mapping[str, str], names: Sequence[str]) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)
