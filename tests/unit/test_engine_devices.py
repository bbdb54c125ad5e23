"""Devices and processes: what fits, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.tiny_engine import tiny_recipe
from tunesmith.engines.jax import devices
from tunesmith.engines.loop import micro_batches
from tunesmith.errors import UserError


def batch(size: int, micro: int | None = None) -> Any:
    return tiny_recipe(Path("none"), train={"batch_size": size, "micro_batch_size": micro})


def test_a_batch_that_does_not_split_names_batch_hosts_and_devices() -> None:
    """G36."""
    with pytest.raises(UserError) as caught:
        micro_batches(batch(6), hosts=4, devices=16)
    assert caught.value.message == (
        "train.batch_size 6 does not split over 4 hosts with 16 devices in all"
    )
    assert caught.value.hint == "Use a multiple of 16."
    with pytest.raises(UserError, match=r"24 .* over 1 host with 8 devices .* micro_batch_size 2"):
        micro_batches(batch(24, 2), hosts=1, devices=8)
    with pytest.raises(UserError, match=r"20 does not split over 1 host with 16 devices"):
        micro_batches(batch(20), hosts=1, devices=16)


@pytest.mark.parametrize(
    ("size", "micro", "count", "passes"),
    [(8, None, 1, 1), (8, 1, 1, 8), (8, 2, 1, 4), (8, None, 8, 1), (16, 1, 8, 2), (32, 2, 8, 2)],
)
def test_passes_of_a_step(size: int, micro: int | None, count: int, passes: int) -> None:
    assert micro_batches(batch(size, micro), hosts=1, devices=count) == passes


@pytest.mark.parametrize("axis", ["fsdp", "tensor", "slices"])
def test_axes_that_are_not_there_yet_are_refused(axis: str) -> None:
    """Never silently trained some other way."""
    recipe = tiny_recipe(Path("none"), parallel={axis: 2})
    with pytest.raises(UserError, match=rf"does not offer parallel\.{axis} above 1 yet"):
        devices.make_mesh(recipe)


def test_a_data_axis_that_is_not_the_machines_is_refused() -> None:
    recipe = tiny_recipe(Path("none"), parallel={"data": 4})
    with pytest.raises(UserError, match=r"parallel\.data is 4, but there") as caught:
        devices.make_mesh(recipe)
    assert caught.value.hint == f"Set it to {jax.device_count()}, or leave it out."


def test_a_mesh_has_all_devices(run_python: Callable[..., str]) -> None:
    code = """
from pathlib import Path
from tests.tiny_engine import tiny_recipe
from tunesmith.engines.jax import devices
from tunesmith.engines.loop import micro_batches
from tunesmith.errors import UserError
recipe = tiny_recipe(Path("none"), train={"batch_size": 8}, parallel={"data": 4})
print(devices.make_mesh(recipe).shape)
try:
    devices.make_mesh(tiny_recipe(Path("none"), train={"batch_size": 6}))
except UserError as error:
    print(error)
"""
    assert run_python(code, devices=4).splitlines() == [
        "OrderedDict({'data': 4})",
        "train.batch_size 6 does not split over 1 host with 4 devices in all",
        "  Use a multiple of 4.",
    ]


@pytest.mark.parametrize(
    ("has_units", "version", "dtype"),
    [(True, "0.12.0", "bfloat16"), (True, "0.11.9", "float32"), (False, "0.12.0", "float32")],
)
def test_auto_is_bfloat16_where_the_cpu_multiplies_it(
    has_units: bool, version: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cpu_multiplies_bf16", lambda: has_units)
    monkeypatch.setattr(jax, "__version__", version)
    assert devices.settle_dtype("auto") == dtype
    assert devices.settle_dtype("float32") == "float32"
    assert devices.settle_dtype("bfloat16") == "bfloat16"


def test_peak_memory_is_that_of_the_process_here() -> None:
    assert 50 * 2**20 < devices.peak_bytes() < 2**40


def test_one_process_joins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAX_COORDINATOR_ADDRESS", "COORDINATOR_ADDRESS", "TPU_WORKER_HOSTNAMES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: pytest.fail("joined"))
    assert devices.start()
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    assert devices.start()


@pytest.mark.parametrize(
    ("variables", "given"),
    [
        (
            {
                "JAX_COORDINATOR_ADDRESS": "a:1",
                "JAX_NUM_PROCESSES": "4",
                "JAX_PROCESS_ID": "2",
            },
            {"num_processes": 4, "process_id": 2},
        ),
        ({"TPU_WORKER_HOSTNAMES": "h0,h1"}, {"num_processes": None, "process_id": None}),
        ({"MEGASCALE_COORDINATOR_ADDRESS": "a"}, {"num_processes": None, "process_id": None}),
    ],
)
def test_several_processes_join(
    variables: dict[str, str], given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **how: joined.append(how))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    devices.start()
    assert joined == [given]
