"""How processes are started, and how they share weights and rows. Nothing is started here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_engine import tiny_recipe
from tunesmith.errors import UserError

pytest.importorskip("torch")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.parity


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NNODES", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)


def flags_of(count: int, environment: dict[str, str]) -> dict[str, str]:
    from tunesmith.engines.hf.launch import launch_flags, node_flags

    first, *rest = launch_flags(count, node_flags(environment))
    assert first == "--multi_gpu"
    return dict(zip(rest[::2], rest[1::2], strict=True))


def test_one_machine_needs_no_variables() -> None:
    flags = flags_of(8, {})
    assert flags["--num_processes"] == "8"
    assert flags["--num_machines"] == "1"
    assert flags["--mixed_precision"] == "no"


@pytest.mark.parametrize("prefix", ["", "PET_"])
def test_several_machines_are_named_by_the_environment(prefix: str) -> None:
    given = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "head", "MASTER_PORT": "1234"}
    flags = flags_of(8, {prefix + name: value for name, value in given.items()})
    assert flags["--num_processes"] == "16"
    assert flags["--num_machines"] == "2"
    assert flags["--machine_rank"] == "1"
    assert flags["--main_process_ip"] == "head"
    assert flags["--main_process_port"] == "1234"


@pytest.mark.parametrize("missing", ["NODE_RANK", "MASTER_ADDR"])
def test_a_machine_must_know_its_place(missing: str) -> None:
    given = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "head"}
    del given[missing]
    with pytest.raises(UserError, match=r"NNODES is 2, but"):
        flags_of(8, given)


def test_accelerate_knows_every_flag() -> None:
    from accelerate.commands.launch import launch_command_parser

    from tunesmith.engines.hf.launch import launch_flags, node_flags

    given = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "head"}
    flags = launch_flags(8, node_flags(given))
    parsed = launch_command_parser().parse_args(
        [*flags, "--module", "tunesmith", "train", "x.yaml", "--set", "a.b=1"]
    )
    assert (parsed.module, parsed.training_script) == (True, "tunesmith")
    assert parsed.training_script_args == ["train", "x.yaml", "--set", "a.b=1"]
    assert (parsed.num_processes, parsed.machine_rank) == (16, 1)


def test_a_process_of_a_launch_starts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tunesmith.engines.hf.launch import processes

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert processes() == 8
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="but not LOCAL_RANK"):
        processes()
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert processes() is None


@pytest.mark.parametrize("gpus", [0, 1])
def test_one_device_needs_no_launch_but_among_other_machines(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from tunesmith.engines.hf.launch import processes

    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert processes() is None
    monkeypatch.setenv("NNODES", "2")
    with pytest.raises(UserError, match="NODE_RANK or MASTER_ADDR is not set"):
        processes()
    monkeypatch.setenv("NODE_RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert processes() == 1


@pytest.mark.parametrize(
    ("parallel", "count", "expected"),
    [
        ({}, 1, (1, 1)),
        ({}, 8, (8, 1)),
        ({"fsdp": 8}, 8, (1, 8)),
        ({"fsdp": 8}, 16, (2, 8)),
        ({"fsdp": 4, "data": 2}, 8, (2, 4)),
    ],
)
def test_devices_are_laid_out(parallel: Any, count: int, expected: tuple[int, int]) -> None:
    from tunesmith.engines.hf.devices import layout

    recipe = tiny_recipe(Path("none"), train={"batch_size": 16}, parallel=parallel)
    assert layout(recipe, count) == expected


@pytest.mark.parametrize(
    ("parallel", "count", "message"),
    [
        ({"fsdp": 8}, 1, "parallel.fsdp 8 does not fit 1 device"),
        ({"fsdp": 4, "data": 4}, 8, "parallel.fsdp 4 × parallel.data 4 does not fit 8 devices"),
        ({"tensor": 2}, 2, "does not offer parallel.tensor"),
        ({"slices": 2}, 2, "does not offer parallel.slices"),
        ({}, 3, "train.batch_size 16 does not split over 1 host with 3 devices"),
    ],
)
def test_what_does_not_fit_is_refused(parallel: Any, count: int, message: str) -> None:
    """G36: before a model is loaded."""
    from tunesmith.engines.hf.devices import layout

    recipe = tiny_recipe(Path("none"), train={"batch_size": 16}, parallel=parallel)
    with pytest.raises(UserError, match=message):
        layout(recipe, count)
