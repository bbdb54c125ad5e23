"""scripts/find-python on machines with odd Pythons."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIND = Path(__file__).parents[2] / "scripts" / "find-python"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class Machine:
    """A PATH with the tools that the script needs, and the Pythons that a test puts there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders = [self.folder("tools")]
        for tool in ("sed", "sh"):
            found = shutil.which(tool)
            assert found
            (self.folders[0] / tool).symlink_to(found)

    def folder(self, name: str) -> Path:
        made = self.root / name
        made.mkdir(parents=True)
        return made

    def add(self, name: str, *, version: str, state: str = "ok", folder: str = "bin") -> Path:
        """A stand-in that answers the script's probe as such a Python would."""
        return self.script(name, f'echo "{state} {version} $0"', folder=folder)

    def script(self, name: str, body: str, *, folder: str = "bin") -> Path:
        path = self.root / folder
        if path not in self.folders:
            self.folders.append(self.folder(folder))
        python = path / name
        python.write_text(f"#!/bin/sh\n{body}\n")
        python.chmod(0o755)
        return python

    def find(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = ":".join(map(str, self.folders))
        return subprocess.run(
            ["/bin/sh", FIND, *arguments],
            env={"PATH": path, "HOME": str(self.root), **environment},
            capture_output=True,
            text=True,
        )


def test_best_version_wins_wherever_it_stands(machine: Machine) -> None:
    machine.add("python3", version="3.14")
    machine.add("python3.11", version="3.11")
    machine.add("python", version="3.12", folder="later")
    best = machine.add("python3.13", version="3.13", folder="last")
    assert machine.find().stdout == f"{best}\n"


def test_314_is_taken_before_311(machine: Machine) -> None:
    machine.add("python3.11", version="3.11")
    best = machine.add("python3.14", version="3.14")
    assert machine.find().stdout == f"{best}\n"


def test_pyenv_shim_without_a_version_is_passed_over(machine: Machine) -> None:
    for name in ("python3.13", "python3", "python"):
        machine.script(name, "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    works = machine.add("python3.12", version="3.12", folder="later")
    assert machine.find().stdout == f"{works}\n"


@pytest.mark.parametrize("variable", ["PYENV_ROOT", "HOME"])
def test_pyenv_folder_is_searched(machine: Machine, variable: str) -> None:
    root = "elsewhere" if variable == "PYENV_ROOT" else ".pyenv"
    python = machine.add("python", version="3.12", folder=f"{root}/versions/3.12.1/bin")
    machine.folders.pop()  # it is not on PATH
    environment = {"PYENV_ROOT": str(machine.root / root)} if variable == "PYENV_ROOT" else {}
    assert machine.find(**environment).stdout == f"{python}\n"


def test_path_with_spaces(machine: Machine) -> None:
    python = machine.add("python3", version="3.13", folder="my tools/bin")
    assert machine.find().stdout == f"{python}\n"


def test_python_without_venv_is_named_with_its_remedy(machine: Machine) -> None:
    machine.add("python3", version="3.12", state="no-venv")
    done = machine.find()
    assert done.returncode == 1
    assert done.stdout == ""
    assert "apt install python3.12-venv" in done.stderr


def test_no_python_says_what_is_needed_and_seen(machine: Machine) -> None:
    old = machine.add("python3", version="3.9")
    done = machine.find()
    assert done.returncode == 1
    assert "3.11 to 3.14" in done.stderr
    assert f"3.9 {old}" in done.stderr


def test_a_version_can_be_asked_for(machine: Machine) -> None:
    machine.add("python3.13", version="3.13")
    asked = machine.add("python3.12", version="3.12")
    assert machine.find("3.12").stdout == f"{asked}\n"
    assert machine.find("3.11").returncode == 1


def test_the_probe_is_right_about_a_real_python(machine: Machine) -> None:
    """The stand-ins above answer the probe; here a real interpreter does."""
    machine.script("python3", f'exec "{sys.executable}" "$@"')
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert machine.find(version).stdout == f"{sys.executable}\n"
