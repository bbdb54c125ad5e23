"""What a recipe's `cloud` section asks for, checked against the table of machines.

Nothing here reaches a cloud: a combination that GKE would refuse, or that would train nothing, is
refused with the reason before anything is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tunesmith.errors import UserError
from tunesmith.hardware import CLOUD_MACHINES, PRICES, CloudMachine
from tunesmith.recipe.schema import Recipe
from tunesmith.recipe.schema_cloud import CloudSection

MAX_FLEX_HOURS = 168  # flex-start machines are taken back after seven days

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1123, as Kubernetes asks
# What the names may be, by Google Cloud's and Kubernetes' rules.
_NAMES = {
    "project": r"[a-z][a-z0-9-]{4,28}[a-z0-9]",
    "region": r"[a-z]+-[a-z]+[0-9]+",
    "zone": r"[a-z]+-[a-z]+[0-9]+-[a-z]",
    "cluster": r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?",
    "reservation": r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
    "bucket": r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]",
    "repo": r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
    "namespace": _LABEL,
    "service_account": _LABEL,
    "hf_secret": _LABEL,
}


@dataclass(frozen=True, slots=True)
class CloudTarget:
    """Machines of a run, known to fit together.

    Attributes:
        topology: of one TPU slice; None for GPUs.
        hosts: machines in one slice.
        slices: how many; 1 for GPUs.
    """

    machine: CloudMachine
    topology: str | None
    hosts: int
    slices: int

    @property
    def machines(self) -> int:
        """In all slices."""
        return self.hosts * self.slices

    @property
    def chips(self) -> int:
        """In all machines."""
        return self.machines * self.machine.chips

    @property
    def pool_topology(self) -> str | None:
        """What a node pool is given as `--tpu-topology`.

        None for one host: GKE refuses the flag there (xpk issue 825).
        """
        return self.topology if self.hosts > 1 else None

    def describe(self) -> str:
        """E.g. `2 slices of 2 × ct6e-standard-4t (2x4), 16 chips`."""
        machines = f"{self.hosts} × {self.machine.name}"
        shape = f" ({self.topology})" if self.topology else ""
        slices = f"{self.slices} slices of " if self.slices > 1 else ""
        return f"{slices}{machines}{shape}, {self.chips} chip{'s' * (self.chips > 1)}"


def cloud_section(recipe: Recipe) -> CloudSection:
    """The recipe's `cloud`.

    Raises:
        UserError: it has none.
    """
    if recipe.cloud is None:
        raise UserError(
            f"recipe {recipe.name} has no `cloud` section",
            "Add cloud: {project, region, machine, ...}; `tunesmith recipes schema` describes it.",
        )
    return recipe.cloud


def resolve_target(recipe: Recipe) -> CloudTarget:
    """The machines that a recipe asks for.

    Raises:
        UserError: they do not exist, do not go together, or cannot share the recipe's batch; all
            reasons at once.
    """
    cloud = cloud_section(recipe)
    broken = [*_broken_names(cloud), *_broken_capacity(cloud)]
    target, reason = _shape(cloud)
    if reason:
        broken.append(reason)
    if target is not None:
        broken += [*_broken_pools(cloud, target), *_broken_work(recipe, target)]
    if target is None or broken:
        told = "".join(f"\n  {field}: {why}" for field, why in broken)
        raise UserError(
            f"recipe {recipe.name} cannot run in the cloud as it is:{told}",
            "Nothing was made. Change the recipe, or try with --set, e.g. --set cloud.topology=2x4",
        )
    return target


def price_per_hour(cloud: CloudSection, target: CloudTarget) -> tuple[float, float] | None:
    """Lowest and highest cost of all machines per hour, in US dollars; None where unknown."""
    if cloud.price_per_hour is not None:
        low = high = cloud.price_per_hour
    elif price := PRICES.get(target.machine.name):
        # A reservation is billed as on demand; flex-start has prices of its own.
        seen = {"spot": price.spot, "flex_start": None}.get(cloud.capacity, price.on_demand)
        if seen is None:
            return None
        low, high = seen
    else:
        return None
    return low * target.machines, high * target.machines


def _broken_names(cloud: CloudSection) -> Iterator[tuple[str, str]]:
    for field, pattern in _NAMES.items():
        value = getattr(cloud, field)
        if value is not None and not re.fullmatch(pattern, value):
            yield f"cloud.{field}", f"{value!r} is no such name; it must match {pattern}"
    if cloud.zone and cloud.zone.rpartition("-")[0] != cloud.region:
        yield "cloud.zone", f"{cloud.zone} is not in region {cloud.region}"
    if cloud.bucket is None:
        yield "cloud.bucket", "name a bucket: it holds data, checkpoints and results"


def _broken_capacity(cloud: CloudSection) -> Iterator[tuple[str, str]]:
    if (cloud.capacity == "reservation") != (cloud.reservation is not None):
        yield (
            "cloud.reservation",
            "`reservation` and `capacity: reservation` go together: set both or neither",
        )
    if cloud.capacity == "flex_start" and (cloud.max_run_hours or 0) > MAX_FLEX_HOURS:
        yield (
            "cloud.max_run_hours",
            f"flex-start machines stay {MAX_FLEX_HOURS} hours at most, not {cloud.max_run_hours:g}",
        )


def _shape(cloud: CloudSection) -> tuple[CloudTarget | None, tuple[str, str] | None]:
    """The machines, or the field that is wrong and why."""
    if cloud.machine is None:
        return None, ("cloud.machine", f"name one of: {', '.join(CLOUD_MACHINES)}")
    machine = CLOUD_MACHINES.get(cloud.machine)
    if machine is None:
        known = ", ".join(CLOUD_MACHINES)
        return None, ("cloud.machine", f"{cloud.machine} is not in the table: {known}")
    if not machine.is_tpu:
        if cloud.topology is not None:
            return None, ("cloud.topology", f"{machine.name} has GPUs: leave `topology` out")
        return CloudTarget(machine, None, 1, cloud.slices), None
    topology = cloud.topology
    if topology is None and len(machine.topologies) == 1:
        (topology,) = machine.topologies
    if topology is None:
        choices = ", ".join(machine.topologies)
        return None, ("cloud.topology", f"{machine.name} builds several slices; one of: {choices}")
    if topology in machine.topologies:
        hosts = machine.topologies[topology]
        return CloudTarget(machine, topology, hosts, cloud.slices), None
    others = [m.name for m in CLOUD_MACHINES.values() if topology in m.topologies]
    where = f"that is built of {' or '.join(others)}" if others else "no v6e slice has this shape"
    choices = ", ".join(machine.topologies)
    return None, (
        "cloud.topology",
        f"{machine.name} has no {topology}, {where}; it has: {choices}",
    )


def _broken_pools(cloud: CloudSection, target: CloudTarget) -> Iterator[tuple[str, str]]:
    if target.slices > 1 and not target.machine.is_tpu:
        yield "cloud.slices", f"{target.machine.name} has GPUs: only TPUs come in slices"
    elif target.slices > 1 and target.hosts == 1:
        yield (
            "cloud.slices",
            f"several slices need slices of several hosts, and {target.topology} of "
            f"{target.machine.name} is one host",
        )
    if cloud.mode == "standard" and cloud.zone is None:
        yield "cloud.zone", "a Standard cluster's node pool needs the zone that has the machines"


def _broken_work(recipe: Recipe, target: CloudTarget) -> Iterator[tuple[str, str]]:
    """Whether this engine trains on these chips, and how the batch is shared among them."""
    if recipe.engine == "hf" and target.machine.is_tpu:
        yield "engine", f"hf trains on GPUs, and {target.machine.name} has TPUs"
    if recipe.engine == "jax" and not target.machine.is_tpu:
        yield "engine", f"jax has a TPU image alone so far, and {target.machine.name} has GPUs"
    parallel, train, chips = recipe.parallel, recipe.train, target.chips
    machines = f"{target.machines} host{'s' * (target.machines > 1)} × {target.machine.chips} chips"
    if parallel.slices != target.slices:
        yield (
            "parallel.slices",
            f"{parallel.slices}, and `cloud.slices` is {target.slices}: they must be equal",
        )
    shared = parallel.fsdp * parallel.tensor * parallel.slices
    if chips % shared or (parallel.data is not None and parallel.data * shared != chips):
        data = "" if parallel.data is None else f"data {parallel.data} × "
        yield (
            "parallel",
            f"{data}fsdp {parallel.fsdp} × tensor {parallel.tensor} × slices {parallel.slices} "
            f"does not make {chips} chips ({machines})",
        )
        return
    readers = chips // parallel.tensor  # devices with rows of their own
    each = readers * (train.micro_batch_size or 1)
    if train.batch_size % each:
        micro = f" × {train.micro_batch_size} (micro_batch_size)" if train.micro_batch_size else ""
        yield (
            "train.batch_size",
            f"{machines}, batch {train.batch_size}: not a multiple of {readers} devices with rows "
            f"of their own{micro}",
        )
