"""Checkpoints of the Hugging Face engine: whole or not at all, safetensors and JSON alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny_engine import collect
from tunesmith.engines.loop import Progress
from tunesmith.errors import UserError

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.parity


@pytest.fixture(autouse=True)
def _alone() -> None:
    from tunesmith.engines.hf.devices import start

    start()


def weights(seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (6, 4), "norm.weight": (5,)}
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in shapes.items()
    }


def trained(steps: int = 3, seed: int = 0) -> tuple[dict[str, Any], Any]:
    """Weights after some steps, and their optimizer."""
    parameters = weights(seed)
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.1)
    take(parameters, optimizer, steps)
    return parameters, optimizer


def take(parameters: dict[str, Any], optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        sum((p**2).sum() for p in parameters.values()).backward()
        optimizer.step()
        optimizer.zero_grad()


def checkpoints(folder: Path, keep: int = 2) -> Any:
    from tunesmith.engines.hf.checkpoint import Checkpoints

    return Checkpoints(folder, keep=keep)


def test_training_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    ours, optimizer = trained()
    progress = Progress(3, 2, 1.5, 1, 100, 60, 4.5)
    checkpoints(tmp_path).save(ours, optimizer, progress)
    theirs = weights(seed=9)
    other = torch.optim.AdamW(theirs.values(), lr=0.1)
    said, say = collect()
    assert checkpoints(tmp_path).restore(theirs, other, say) == progress
    assert said == []
    take(ours, optimizer, 4)
    take(theirs, other, 4)
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name])  # bit for bit, moments and all


def test_nothing_is_pickled(tmp_path: Path) -> None:
    checkpoints(tmp_path).save(*trained(), Progress(step=3))
    files = sorted(path.name for path in (tmp_path / "state/3").iterdir())
    assert files[0] == "progress.json"
    assert all(name.endswith(".safetensors") for name in files[1:])
    assert len(files) == 2


def test_the_newest_are_kept_and_the_best_besides(tmp_path: Path) -> None:
    ours, optimizer = trained()
    kept = checkpoints(tmp_path, keep=2)
    for step in (1, 2, 10, 11):
        kept.save(ours, optimizer, Progress(step))
        if step < 3:
            kept.save_best(ours, step)
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["10", "11"]
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["2"]


DAMAGE = {
    "cut short": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "empty": lambda file: file.write_bytes(b""),
    "zeros": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "missing": lambda file: file.unlink(),
}


@pytest.mark.parametrize("name", ["progress.json", "*.safetensors"])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over(how: str, name: str, tmp_path: Path) -> None:
    """G23: names it, and takes the one before."""
    ours, optimizer = trained()
    kept = checkpoints(tmp_path)
    kept.save(ours, optimizer, Progress(step=3))
    expected = {name: weight.detach().clone() for name, weight in ours.items()}
    take(ours, optimizer, 1)
    kept.save(ours, optimizer, Progress(step=4))
    (file,) = (tmp_path / "state/4").glob(name)
    DAMAGE[how](file)
    theirs = weights(seed=9)
    said, say = collect()
    other = torch.optim.AdamW(theirs.values(), lr=0.1)
    assert kept.restore(theirs, other, say).step == 3
    assert "the checkpoint of step 4 cannot be read" in said[0]
    for key, weight in expected.items():
        assert torch.equal(weight, theirs[key])


def test_when_none_can_be_read_the_run_stops(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    kept.save(*trained(), Progress(step=3))
    (tmp_path / "state/3/progress.json").write_text("{")
    theirs = weights()
    with pytest.raises(UserError, match="none of the checkpoints"):
        kept.restore(theirs, torch.optim.AdamW(theirs.values()), print)


def test_a_checkpoint_broken_off_is_none(tmp_path: Path) -> None:
    (tmp_path / "state/.7").mkdir(parents=True)
    theirs = weights()
    begun = checkpoints(tmp_path).restore(theirs, torch.optim.AdamW(theirs.values()), print)
    assert begun == Progress()


def test_weights_of_another_recipe_are_refused(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    kept.save(*trained(), Progress(step=3))
    other = weights() | {"b.weight": torch.nn.Parameter(torch.zeros(2, 2))}
    with pytest.raises(UserError, match="holds other weights"):
        kept.restore_weights(other, print, use_best=True)
    ours = weights(seed=5)
    assert kept.restore_weights(ours, print, use_best=True) == 3
