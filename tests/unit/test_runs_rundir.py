"""The run folder: files whole or not at all, and what a manifest says."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import subprocess
from pathlib import Path

import pytest

from tunesmith.errors import UserError
from tunesmith.runs.rundir import RunDir, make_manifest, read_json, write_json, write_text


def test_text_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.txt"
    write_text(path, "one\nÄ")
    write_text(path, "two")
    assert path.read_bytes() == b"two"
    assert [p.name for p in path.parent.iterdir()] == ["b.txt"]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summary.json"
    write_text(path, "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*summary\.json: No space left on device"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*: (Not a directory|File exists)"):
        write_text(tmp_path / "run" / "recipe.yaml", "")


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": math.nan})
    assert list(tmp_path.iterdir()) == []


def test_json_comes_back(tmp_path: Path) -> None:
    value = {"loss": 1.5, "text": "naïve", "none": None}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    assert "naïve" in (tmp_path / "a.json").read_text("utf-8")


def test_missing_and_damaged_json_are_named(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    with pytest.raises(UserError, match=r"cannot read .*manifest\.json: No such file"):
        read_json(path)
    path.write_text('{"version": 1, ')
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        read_json(path)


def test_layout(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    names = (run.recipe, run.manifest, run.metrics, run.checkpoints, run.samples, run.export)
    assert [path.relative_to(tmp_path).as_posix() for path in names] == [
        "recipe.yaml",
        "manifest.json",
        "metrics.jsonl",
        "checkpoints",
        "samples.json",
        "export",
    ]
    assert run.evaluation("before") == tmp_path / "evaluation" / "before.json"
    assert run.summary == tmp_path / "summary.json"
    assert not run.finished
    run.summary.write_text("{}")
    assert run.finished


def test_manifest_says_what_a_run_is_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        who = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
        subprocess.run(["git", *who, *command], cwd=tmp_path, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.strip()
    monkeypatch.chdir(tmp_path)
    manifest = make_manifest(data_fingerprint="abc", seed=7, model="m")
    json.dumps(manifest)
    assert manifest["version"] == 1
    assert manifest["git_commit"] == head
    assert (manifest["data_fingerprint"], manifest["seed"], manifest["model"]) == ("abc", 7, "m")
    assert {"tunesmith", "python", "jax", "numpy", "tokenizers"} <= manifest["versions"].keys()
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4}", manifest["run_id"])
    other = make_manifest(data_fingerprint="abc", seed=7, model="m")
    assert other["run_id"] != manifest["run_id"]


def test_outside_a_work_tree_there_is_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert make_manifest(data_fingerprint="", seed=0, model="")["git_commit"] is None
