"""Writes constraints.txt: the newest set of versions that pip resolves, for each Python.

    python scripts/lock.py PYTHON_3_11 PYTHON_3_12 PYTHON_3_13

Each Python resolves by itself (markers in packages' metadata look at the one that runs). Nothing
is installed but a throwaway venv each. A package on which they differ gets a line per version.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

EXTRAS = "demo,dev,hf,qlora,tensorboard,gke"
ROOT = Path(__file__).parents[1]
HEADER = f"""\
# Versions known to work together, on Linux with Python 3.11 to 3.13; written by `make lock`.
# They cover everything that `tunesmith[{EXTRAS}]` installs.
"""


def main(pythons: list[str]) -> None:
    """Resolves with each interpreter and writes the file."""
    resolved = dict(resolve(python) for python in pythons)
    names = sorted(set().union(*resolved.values()))
    lines = [line for name in names for line in pin(name, resolved)]
    path = ROOT / "constraints.txt"
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"Wrote {path} with {len(names)} packages.")


def resolve(python: str) -> tuple[str, dict[str, str]]:
    """Returns the interpreter's version, e.g. "3.12", and version by package name."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        report = Path(folder, "report.json")
        pip = [Path(folder, "bin/python"), "-m", "pip", "--disable-pip-version-check", "install"]
        pip += ["-q", "--dry-run", "--ignore-installed", "--report", report, f"{ROOT}[{EXTRAS}]"]
        subprocess.run(pip, check=True)
        found = json.loads(report.read_text(encoding="utf-8"))
    version = ".".join(found["environment"]["python_version"].split(".")[:2])
    print(f"Python {version}: {len(found['install'])} packages", flush=True)
    packages = (item["metadata"] for item in found["install"])
    return version, {
        package["name"].lower().replace("_", "-").replace(".", "-"): package["version"]
        for package in packages
        if package["name"] != "tunesmith"
    }


def pin(name: str, resolved: dict[str, dict[str, str]]) -> list[str]:
    """The lines for one package: a single one where all Pythons agree."""
    versions = {python: packages.get(name) for python, packages in resolved.items()}
    if len(set(versions.values())) == 1:
        return [f"{name}=={versions.popitem()[1]}"]
    newest = max(versions, key=lambda python: int(python.split(".")[1]))
    return [
        f"{name}=={version}; python_version {'>=' if python == newest else '=='} '{python}'"
        for python, version in versions.items()
        if version is not None
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
