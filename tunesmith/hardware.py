"""What machines can do. Chips, slices and prices belong here too, each as one row."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets of this machine's CPU, as Linux names them; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def cpu_multiplies_bf16() -> bool:
    """Whether the CPU has matrix units for bfloat16 (AMX, from Sapphire Rapids on).

    Without them bfloat16 products are emulated and slower than float32 ones: on an AVX2 machine
    56 to 80 GFLOP/s against 120 to 160 (jax 0.12, 2048 x 640 x 2048).
    """
    return {"amx_tile", "amx_bf16"} <= cpu_flags()


def peak_process_bytes() -> int:
    """Most memory that this process has held, in bytes."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
