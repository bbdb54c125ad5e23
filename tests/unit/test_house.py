"""The house rules that no linter holds."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
# The training loop stays one straight function, to be read from top to bottom.
LONG_FUNCTIONS = {("tunesmith/engines/loop.py", "run_loop")}
# Written apart, so that this file does not name them itself.
FORBIDDEN = [
    "pypi" + ".org",
    "files." + "pythonhosted",
    "registry." + "npmjs",
    "/work" + "/",
    "/tmp" + "/w",
    "/opt" + "/pypi",
]


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository that are there, committed or about to be."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    found = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(ROOT / name for name in found.split("\0") if name and (ROOT / name).is_file())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_file_is_longer_than_500_lines() -> None:
    lengths = {relative(path): path.read_text("utf-8").count("\n") for path in tracked("*.py")}
    assert lengths  # git found the files
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, less the docstring: what it says shall cost nothing."""
    docstring = ast.get_docstring(function, clean=False) or ""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    return lines - (docstring.count("\n") + 1 if docstring else 0)


def test_no_function_is_longer_than_60_lines() -> None:
    long = {
        (relative(path), node.name): code_lines(node)
        for path in tracked("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and code_lines(node) > MAX_FUNCTION_LINES
    }
    assert {where: lines for where, lines in long.items() if where not in LONG_FUNCTIONS} == {}


def test_no_module_is_called_utils() -> None:
    vague = {"utils", "util", "helpers", "misc", "common"}
    assert [relative(path) for path in tracked("*.py") if path.stem in vague] == []


@pytest.mark.parametrize("word", FORBIDDEN)
def test_no_text_names_a_registry_or_a_place_on_one_machine(word: str) -> None:
    assert [relative(path) for path in tracked() if word.encode() in path.read_bytes()] == []


def test_help_loads_nothing_heavy() -> None:
    """`tunesmith --help` must answer at once, so nothing slow is imported before it."""
    command = [sys.executable, "-X", "importtime", "-m", "tunesmith", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    imported = {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert "argparse" in imported  # the listing is there
    heavy = {"jax", "torch", "transformers", "numpy", "pydantic", "pyarrow", "sqlglot", "fsspec"}
    assert imported & heavy == set()
