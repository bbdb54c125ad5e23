"""One process for each GPU, started by `tunesmith train` itself through Accelerate."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import torch

from tunesmith.errors import EXIT_BUG, UserError

# A launcher that starts every process by itself (torchrun, Accelerate, MPI) sets these.
_STARTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
# A launch on several machines by `tunesmith train` on each: ours, and those of torchrun in pods.
_NODES = ("NNODES", "PET_NNODES")
_NODE_RANK = ("NODE_RANK", "PET_NODE_RANK")
_ADDRESS = ("MASTER_ADDR", "PET_MASTER_ADDR")
_PORT = ("MASTER_PORT", "PET_MASTER_PORT")


def launch(arguments: Sequence[str]) -> int | None:
    """Run `tunesmith ARGUMENTS` in one process for each visible GPU of this machine.

    Returns:
        The exit status of the first process that failed, 0 if none did; None if this process is to
        do the work itself, as one of a launch or as the only one.

    Raises:
        UserError: the environment names other machines, but not this one's place among them.
    """
    count = torch.cuda.device_count()
    if any(name in os.environ for name in _STARTED):
        missing = [name for name in _STARTED if name not in os.environ]
        if missing:
            raise UserError(
                f"the environment has a launcher's variables, but not {', '.join(missing)}",
                "Set all of RANK, WORLD_SIZE and LOCAL_RANK for each process, or none of them.",
            )
        return None
    nodes = node_flags(os.environ)
    if count * int(nodes.get("num_machines", 1)) < 2:
        return None
    return _launch(count, nodes, arguments)


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


def _launch(count: int, nodes: Mapping[str, str], arguments: Sequence[str]) -> int:
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    total = count * int(nodes.get("num_machines", 1))
    flags = {"num_processes": str(total), "mixed_precision": "no", "dynamo_backend": "no"} | nodes
    if not nodes:
        flags |= {"num_machines": "1", "main_process_port": "0"}  # any port that is free
    command = ["--multi_gpu", *(part for name in flags for part in (f"--{name}", flags[name]))]
    parsed = launch_command_parser().parse_args([*command, "--module", "tunesmith", *arguments])
    try:
        launch_command(parsed)
    except ChildFailedError as failed:
        first = min(failed.failures.values(), key=lambda failure: failure.timestamp)
        # Killed by a signal: as shells tell it.
        return first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    except KeyboardInterrupt:
        raise
    except Exception as error:
        print(f"error: the processes could not be started: {error}", file=sys.stderr)
        return EXIT_BUG
    return 0
