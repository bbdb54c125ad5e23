"""Machines, topologies and batches that go together, and the reasons why others do not."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from tests.cloud_recipes import CLOUDS, cloud_recipe
from tunesmith.cloud.targets import cloud_section, price_per_hour, resolve_target
from tunesmith.errors import UserError
from tunesmith.hardware import CLOUD_MACHINES, PRICES


def refusal(target: str, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        resolve_target(cloud_recipe(target, **changes))
    return caught.value.message


@pytest.mark.parametrize(
    ("target", "described", "pool_topology"),
    [
        ("tpu-autopilot", "1 × ct6e-standard-1t (1x1), 1 chip", None),
        ("tpu-standard", "1 × ct6e-standard-1t (1x1), 1 chip", None),
        ("tpu-multihost", "2 × ct6e-standard-4t (2x4), 8 chips", "2x4"),
        ("tpu-multislice", "2 slices of 2 × ct6e-standard-4t (2x4), 16 chips", "2x4"),
        ("gpu-a4", "1 × a4-highgpu-8g, 8 chips", None),
    ],
)
def test_targets_of_the_tutorials(target: str, described: str, pool_topology: str | None) -> None:
    """A pool of one host has no --tpu-topology (G41)."""
    found = resolve_target(cloud_recipe(target))
    assert found.describe() == described
    assert found.pool_topology == pool_topology


def test_every_slice_has_as_many_chips_as_its_topology() -> None:
    """G41: nodes of a pool = hosts of the slice."""
    shapes = [(m, t, h) for m in CLOUD_MACHINES.values() for t, h in m.topologies.items()]
    assert len(shapes) == 8
    for machine, topology, hosts in shapes:
        assert prod(map(int, topology.split("x"))) == machine.chips * hosts


def test_one_2x4_is_one_large_host_or_two() -> None:
    assert resolve_target(cloud_recipe("tpu-multihost", machine="ct6e-standard-8t")).hosts == 1
    assert resolve_target(cloud_recipe("tpu-multihost")).hosts == 2


@pytest.mark.parametrize(
    ("target", "changes", "reason"),
    [
        (
            "tpu-multihost",
            {"topology": "3x5"},
            "cloud.topology: ct6e-standard-4t has no 3x5, no v6e slice has this shape; "
            "it has: 2x2, 2x4, 4x4, 4x8, 8x8, 8x16",
        ),
        (
            "tpu-autopilot",
            {"topology": "2x4"},
            "cloud.topology: ct6e-standard-1t has no 2x4, that is built of ct6e-standard-4t or "
            "ct6e-standard-8t; it has: 1x1",
        ),
        ("tpu-multihost", {"topology": None}, "ct6e-standard-4t builds several slices; one of"),
        ("tpu-autopilot", {"machine": None}, "cloud.machine: name one of: ct6e-standard-1t"),
        ("tpu-autopilot", {"machine": "n2-standard-4"}, "n2-standard-4 is not in the table"),
        ("gpu-a4", {"topology": "2x4"}, "a4-highgpu-8g has GPUs: leave `topology` out"),
        ("gpu-a4", {"slices": 2}, "a4-highgpu-8g has GPUs: only TPUs come in slices"),
        ("tpu-multislice", {"topology": "2x2"}, "2x2 of ct6e-standard-4t is one host"),
        ("tpu-standard", {"zone": None}, "cloud.zone: a Standard cluster's node pool needs"),
        ("tpu-standard", {"zone": "us-east1-b"}, "us-east1-b is not in region us-east5"),
        ("tpu-standard", {"bucket": None}, "cloud.bucket: name a bucket"),
        ("tpu-standard", {"capacity": "reservation"}, "cloud.reservation: `reservation` and"),
        ("tpu-standard", {"reservation": "r"}, "cloud.reservation: `reservation` and"),
        (
            "tpu-standard",
            {"capacity": "flex_start", "max_run_hours": 200.0},
            "flex-start machines stay 168 hours at most, not 200",
        ),
        ("tpu-standard", {"cluster": "a;rm -rf"}, "cloud.cluster: 'a;rm -rf' is no such name"),
        ("gpu-a4", {"machine": "ct6e-standard-8t"}, "engine: hf trains on GPUs"),
        ("tpu-autopilot", {"machine": "g2-standard-12", "topology": None}, "engine: jax has a TPU"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(
    target: str, changes: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(target, **changes)


def test_batch_that_hosts_cannot_share() -> None:
    """G36: the message names batch, hosts and chips."""
    told = refusal("tpu-multihost", topology="4x4", batch_size=6)
    assert "train.batch_size: 4 hosts × 4 chips, batch 6: not a multiple of 16 devices" in told


def test_axes_that_do_not_make_the_chips() -> None:
    recipe = cloud_recipe("tpu-multislice")
    for axes, told in (
        ({"fsdp": 3}, "fsdp 3 × tensor 1 × slices 2 does not make 16 chips"),
        ({"data": 16}, "data 16 × fsdp 1 × tensor 1 × slices 2 does not make 16 chips"),
    ):
        parallel = recipe.parallel.model_copy(update=axes)
        with pytest.raises(UserError, match=told):
            resolve_target(recipe.model_copy(update={"parallel": parallel}))
    fitting = recipe.parallel.model_copy(update={"data": 8})
    assert resolve_target(recipe.model_copy(update={"parallel": fitting})).chips == 16


def test_all_reasons_are_told_at_once() -> None:
    told = refusal("tpu-multihost", bucket=None, zone=None, batch_size=6)
    assert [line.split(":")[0].strip() for line in told.splitlines()[1:]] == [
        "cloud.bucket",
        "cloud.zone",
        "train.batch_size",
    ]


def test_recipe_without_a_cloud() -> None:
    recipe = cloud_recipe("gpu-a4").model_copy(update={"cloud": None})
    with pytest.raises(UserError, match="has no `cloud` section"):
        resolve_target(recipe)


@pytest.mark.parametrize(
    ("target", "changes", "price"),
    [
        ("tpu-multislice", {}, (43.2, 51.84)),
        ("tpu-multislice", {"capacity": "spot"}, (9.168, 21.6)),
        ("tpu-multislice", {"capacity": "flex_start"}, None),
        ("tpu-multislice", {"price_per_hour": 5.0}, (20.0, 20.0)),
        ("gpu-a4", {}, (64.44, 90.22)),
        ("gpu-a4", {"machine": "a3-ultragpu-8g"}, None),
    ],
)
def test_price_of_all_machines(
    target: str, changes: dict[str, Any], price: tuple[float, float] | None
) -> None:
    recipe = cloud_recipe(target, **changes)
    found = price_per_hour(cloud_section(recipe), resolve_target(recipe))
    assert found == (price if price is None else pytest.approx(price))


def test_priced_machines_are_in_the_table() -> None:
    assert set(PRICES) <= set(CLOUD_MACHINES)
    assert {recipe["machine"] for recipe in CLOUDS.values()} <= set(PRICES)
