"""What is known of a model before its weights are here: its config.json."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from tunesmith.errors import UserError
from tunesmith.models.catalog import GEMMA3_SIZES
from tunesmith.models.gemma4_sizes import GEMMA4_SIZES
from tunesmith.models.tensor_files import read_json

_ID = re.compile(r"google/gemma-([34])-(\w+(?:-a\w+)?)(?:-it|-pt)?", re.IGNORECASE)


def find_config(
    source: Literal["hub", "dir"], model_id: str, revision: str | None
) -> dict[str, Any]:
    """The config.json of a model: of its directory, of the Hub's cache, or as published.

    Nothing is fetched.

    Args:
        source: as in `recipe.model`; a GGUF is converted to a directory first.
        model_id: a directory or a Hub id.
        revision: of a Hub model.

    Raises:
        UserError: it is in none of these places.
    """
    if source == "dir":
        return read_json(Path(model_id).expanduser() / "config.json")
    if cached := _cached_config(model_id, revision):
        return read_json(cached)
    if published := published_config(model_id):
        return published
    raise UserError(
        f"the shape of {model_id} is not known here: it is neither in the Hub's cache nor among "
        "Google's Gemma 3 and 4 models",
        f"Fetch its description with `hf download {model_id} config.json`, or give a copy with "
        "`--set model.source=dir --set model.id=DIRECTORY`.",
    )


def published_config(model_id: str) -> dict[str, Any] | None:
    """The text decoder of one of Google's Gemma 3 or 4 models, by its Hub id."""
    match = _ID.fullmatch(model_id)
    if not match:
        return None
    if match[1] == "4":
        return GEMMA4_SIZES.get(match[2].lower())
    if size := GEMMA3_SIZES.get(match[2].lower()):
        fields = {name: value for name, value in size.items() if name != "rope_factor"}
        return {"model_type": "gemma3_text"} | fields
    return None


def _cached_config(model_id: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model_id, "config.json", revision=revision)
    except HFValidationError as error:
        raise UserError(
            f"{model_id!r} is not a Hub id", "A directory needs `--set model.source=dir`."
        ) from error
    return Path(found) if isinstance(found, str) else None
