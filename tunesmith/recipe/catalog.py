"""The recipes that come with the package."""

from __future__ import annotations

from importlib.resources import files

from tunesmith.errors import UserError


def shipped_names() -> list[str]:
    """Names of the shipped recipes, in alphabetical order."""
    folder = files("tunesmith") / "recipes"
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def shipped() -> list[tuple[str, str]]:
    """Name and description of each shipped recipe."""
    from tunesmith.recipe.load import parse_recipe

    return [(name, parse_recipe(shipped_text(name), name).description) for name in shipped_names()]


def shipped_text(name: str) -> str:
    """The YAML of a shipped recipe, comments included.

    Raises:
        UserError: no shipped recipe has this name.
    """
    if name not in shipped_names():
        from tunesmith.recipe.explain import nearest

        near = nearest(name, shipped_names())
        raise UserError(
            f"no shipped recipe is called {name!r}" + (f"; did you mean {near}?" if near else ""),
            f"There are: {', '.join(shipped_names())}.",
        )
    return (files("tunesmith") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
