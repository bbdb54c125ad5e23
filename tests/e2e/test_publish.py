"""`tunesmith train` with `run.push_to_hub`, against a stand-in of the Hub on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub import TOKEN, Hub, Refused, connected_hub
from tests.tiny_run import read_summary, tunesmith, write_recipe

# huggingface_hub's own use of httpx, when it puts large files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with connected_hub(tmp_path) as hub:
        yield hub


def recipe_in(folder: Path, tiny: Path) -> Path:
    run = {"dir": str(folder / "run"), "push_to_hub": "ada/tiny"}
    return write_recipe(folder, tiny, train={"max_steps": 2}, run=run)


def test_a_token_that_is_no_good_stops_before_anything_is_loaded(
    hub: Hub, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del hub.accounts[TOKEN]
    assert tunesmith("train", recipe_in(tmp_path / "rows", tiny)) == 2
    captured = capsys.readouterr()
    assert "the Hub does not know the token (401)" in captured.err
    assert captured.out == ""
    assert not (tmp_path / "rows" / "run").exists()


def test_a_finished_run_is_pushed_once_and_again_if_that_failed(
    hub: Hub, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is lost by a push that fails, and nowhere is the token."""
    recipe, run = recipe_in(tmp_path / "rows", tiny), tmp_path / "rows" / "run"
    hub.refuse["POST /api/models/ada/tiny/commit"] = Refused(403, "storage limit reached")
    assert tunesmith("train", recipe) == 2
    failed = capsys.readouterr()
    assert hub.repos["ada/tiny"].private  # made before training
    assert failed.out.index("made http") < failed.out.index("loading the model")
    assert "the run is finished, but its export is not on the Hub" in failed.err
    assert "storage limit reached" in failed.err
    summary, metrics = read_summary(run), (run / "metrics.jsonl").read_bytes()
    assert (summary["status"], summary["hub"]) == ("finished", {"url": None})
    assert Path(summary["export"]["path"]).is_dir()

    assert tunesmith("train", recipe) == 0
    pushed = capsys.readouterr()
    url = f"{hub.url}/ada/tiny"
    assert f"on the Hub              {url}" in pushed.out
    assert read_summary(run) == summary | {"hub": {"url": url}}
    assert (run / "metrics.jsonl").read_bytes() == metrics
    repo = hub.repos["ada/tiny"]
    files = {path.name: path.read_bytes() for path in (run / "export").iterdir()}
    assert repo.files == {n: content for n, content in files.items() if "proof" not in n}
    assert "model.safetensors" in repo.files
    assert len(repo.commits) == 1

    asked = len(hub.requests)
    assert tunesmith("train", recipe) == 0
    shown = capsys.readouterr()
    assert f"on the Hub              {url}" in shown.out
    assert len(hub.requests) == asked

    assert TOKEN not in "".join([*failed, *pushed, *shown])
    written = [path for path in (tmp_path / "rows").rglob("*") if path.is_file()]
    assert len(written) > 10
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]


def test_one_start_trains_and_pushes(
    hub: Hub, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_in(tmp_path / "rows", tiny)
    assert tunesmith("train", recipe) == 0
    out = capsys.readouterr().out
    assert out.index("the same greedy text") < out.index("pushing the export to")
    assert read_summary(tmp_path / "rows" / "run")["hub"] == {"url": f"{hub.url}/ada/tiny"}
    assert len(hub.repos["ada/tiny"].commits) == 1
