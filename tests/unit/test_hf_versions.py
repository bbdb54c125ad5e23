"""Libraries older than what the engine was tried with."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tunesmith.errors import UserError

pytest.importorskip("packaging")


def requirements() -> list[str]:
    """As the installed package would name them."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extra = tomllib.loads(text)["project"]["optional-dependencies"]["hf"]
    return [f"{requirement}; extra == 'hf'" for requirement in extra]


@pytest.mark.parametrize(
    ("installed", "refused"), [("5.5.4", True), ("5.24.0", False), ("6.0.dev0", False)]
)
def test_an_older_library_is_refused(
    installed: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G15: known to load weights wrongly without an error."""
    from tunesmith.engines.hf.versions import check_versions

    versions = {"transformers": installed}
    monkeypatch.setattr(metadata, "requires", lambda name: requirements())
    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name, "99"))
    if not refused:
        check_versions()
        return
    with pytest.raises(UserError, match=rf"needs transformers >=\S+, and {installed} is installed"):
        check_versions()
