"""THE table of what machines can do: one row for each chip."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tunesmith.errors import UserError


@dataclass(frozen=True, slots=True)
class Chip:
    """An accelerator that Google Cloud rents.

    Attributes:
        name: as in `tunesmith plan --on`.
        memory_bytes: of one chip, as published (decimal gigabytes). Drivers report up to 7 % more,
            so what fits here has that in reserve.
        bf16_flops: peak rate of dense bfloat16 products, per second.
        memory_bandwidth: bytes per second between the chip and its memory.
        machines: Google Cloud machine types by the number of chips in them, smallest first.
    """

    name: str
    memory_bytes: int
    bf16_flops: float
    memory_bandwidth: float
    machines: dict[int, str]


# Rates: NVIDIA's data sheets of the SXM parts (and of the L4), without sparsity. Machine types:
# https://cloud.google.com/compute/docs/accelerator-optimized-machines. Written down from memory:
# neither page was opened for it, so compare before a figure decides something.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("b200", 180 * 10**9, 2.25e15, 8.0e12, {8: "a4-highgpu-8g"}),
        Chip("h200", 141 * 10**9, 989e12, 4.8e12, {8: "a3-ultragpu-8g"}),
        Chip("h100", 80 * 10**9, 989e12, 3.35e12, {n: f"a3-highgpu-{n}g" for n in (1, 2, 4, 8)}),
        Chip(
            "a100-80", 80 * 10**9, 312e12, 2.04e12, {n: f"a2-ultragpu-{n}g" for n in (1, 2, 4, 8)}
        ),
        Chip("a100-40", 40 * 10**9, 312e12, 1.56e12, {n: f"a2-highgpu-{n}g" for n in (1, 2, 4, 8)}),
        Chip("l4", 24 * 10**9, 121e12, 0.3e12, {n: f"g2-standard-{12 * n}" for n in (1, 2, 4, 8)}),
    )
}


@dataclass(frozen=True, slots=True)
class CloudMachine:
    """A Google Cloud machine type with accelerators, as GKE schedules pods on it.

    Attributes:
        accelerator: value of the node label that pods select.
        chips: in one machine.
        topologies: for TPUs, the slices built of it and the machines (hosts) in each; a slice of
            one host is a node pool without `--tpu-topology`. Empty for GPUs.
    """

    name: str
    accelerator: str
    chips: int
    topologies: dict[str, int]

    @property
    def is_tpu(self) -> bool:
        """Whether pods ask for `google.com/tpu` rather than `nvidia.com/gpu`."""
        return bool(self.topologies)


_V6E_HOSTS = {"2x2": 1, "2x4": 2, "4x4": 4, "4x8": 8, "8x8": 16, "8x16": 32}
_GPU_LABELS = {
    "b200": "nvidia-b200",
    "h200": "nvidia-h200-141gb",
    "h100": "nvidia-h100-80gb",
    "a100-80": "nvidia-a100-80gb",
    "a100-40": "nvidia-tesla-a100",
    "l4": "nvidia-l4",
}
# TPU v6e: 32 GB a chip. https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
CLOUD_MACHINES = {
    machine.name: machine
    for machine in (
        CloudMachine("ct6e-standard-1t", "tpu-v6e-slice", 1, {"1x1": 1}),
        CloudMachine("ct6e-standard-4t", "tpu-v6e-slice", 4, _V6E_HOSTS),
        CloudMachine("ct6e-standard-8t", "tpu-v6e-slice", 8, {"2x4": 1}),
        *(
            CloudMachine(name, _GPU_LABELS[chip.name], count, {})
            for chip in CHIPS.values()
            for count, name in chip.machines.items()
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per machine and hour, lowest and highest seen; they differ by zone and change."""

    on_demand: tuple[float, float]
    spot: tuple[float, float] | None


# From a public catalogue. A recipe's `cloud.price_per_hour` overrides them; what has no row here
# has no known price. v6e is priced by the chip: $2.70 in the US to $3.24 in Tokyo.
PRICES_NOTED = "2026-12-01"
PRICES = {
    **{
        f"ct6e-standard-{n}t": Price((2.70 * n, 3.24 * n), (0.573 * n, 1.35 * n)) for n in (1, 4, 8)
    },
    "a4-highgpu-8g": Price((64.44, 90.22), (32.61, 32.61)),
}
GKE_FEE_PER_HOUR = 0.10  # of a cluster, whether anything runs on it or not


@dataclass(frozen=True, slots=True)
class Target:
    """So many of one chip."""

    chip: Chip
    count: int

    @property
    def name(self) -> str:
        """As `parse_target` reads it, e.g. `b200x8`."""
        return f"{self.chip.name}x{self.count}"

    @property
    def machines(self) -> tuple[int, str]:
        """How many machines of which type hold the chips, e.g. (2, "a4-highgpu-8g")."""
        for size, machine in self.chip.machines.items():
            if size >= self.count:
                return 1, machine
        size, machine = max(self.chip.machines.items())
        return -(-self.count // size), machine


def parse_target(text: str) -> Target:
    """Read `b200x8` (eight B200) or `l4` (one L4).

    Raises:
        UserError: the chip is not in the table, or the text is not of this form.
    """
    name, _, count = text.lower().strip().partition("x")
    if name in CHIPS and re.fullmatch(r"[1-9][0-9]{0,4}", count or "1"):
        return Target(CHIPS[name], int(count or "1"))
    near = difflib.get_close_matches(name, CHIPS, n=1)
    raise UserError(
        f"{text!r} is no machine" + (f"; did you mean {near[0]}x8?" if near else ""),
        f"Write the chip and how many, e.g. b200x8. Chips: {', '.join(CHIPS)}.",
    )


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
