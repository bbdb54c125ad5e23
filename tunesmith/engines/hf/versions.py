"""Versions of the libraries that the engine is known to work with."""

from __future__ import annotations

from importlib import metadata

from tunesmith.errors import UserError


def check_versions() -> None:
    """See that no library is older than what pyproject.toml asks for.

    pip does not hold on to it: what is installed later may bring an older one along. Older versions
    of these load Gemma's weights wrongly without an error
    (https://github.com/huggingface/transformers/issues/45242).

    Raises:
        UserError: names the library, its version and the one needed.
    """
    from packaging.requirements import Requirement

    try:
        wanted = metadata.requires("tunesmith") or []
    except metadata.PackageNotFoundError:  # run from its sources, without being installed
        return
    for text in wanted:
        requirement = Requirement(text)
        if requirement.marker is None or not requirement.marker.evaluate({"extra": "hf"}):
            continue
        try:
            found = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue  # importing it says so
        if not requirement.specifier.contains(found, prereleases=True):
            raise UserError(
                f"engine: hf needs {requirement.name} {requirement.specifier}, and {found} is "
                "installed",
                "Install it with: pip install --upgrade 'tunesmith[hf]'",
            )
