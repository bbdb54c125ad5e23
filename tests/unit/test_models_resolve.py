"""Where a model comes from → a local directory."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from tests.tiny import write_tiny_gemma3
from tunesmith.errors import UserError
from tunesmith.models import resolve
from tunesmith.models.catalog import load_config
from tunesmith.models.resolve import resolve_model

PAGE = "https://huggingface.co/google/gemma-3-270m"
MODEL = "google/gemma-3-270m"


def test_directory_is_used_where_it_is(tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    assert resolve_model("dir", str(directory)) == directory


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file_is_named(name: str, tmp_path: Path) -> None:
    (write_tiny_gemma3(tmp_path) / name).unlink()
    with pytest.raises(UserError, match=f"lacks {name}"):
        resolve_model("dir", str(tmp_path))


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("adapter_config.json", "must name its base model"),
        ("model.gguf", "`model.source: gguf`"),
        ("pytorch_model.bin", "PyTorch pickles"),
        ("README.md", "save_pretrained"),
    ],
)
def test_other_directory_gets_a_way_out(file: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / file).touch()
    with pytest.raises(UserError, match=r"lacks config\.json, tokenizer\.json, model") as refused:
        resolve_model("dir", str(tmp_path))
    assert hint in str(refused.value.hint)


@pytest.mark.parametrize(
    ("model_id", "hint"),
    [
        (MODEL, "`model.source: hub`"),
        ("model.gguf", "`model.source: gguf`"),
        ("pypi:some-gguf", "`model.source: gguf`"),
        ("./nowhere/at/all", "None"),
    ],
)
def test_wrong_source_is_recognised(model_id: str, hint: str) -> None:
    with pytest.raises(UserError, match="is not a directory") as refused:
        resolve_model("dir", model_id)
    assert hint in str(refused.value.hint)


def test_revision_belongs_to_the_hub(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`model\.revision` belongs to Hub models"):
        resolve_model("dir", str(tmp_path), "main")


# -- GGUF ---------------------------------------------------------------------------------------


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    pytest.importorskip("gguf", reason="the `demo` extra is not installed")
    from tests.tiny_gguf import write_tiny_gguf

    return write_tiny_gguf(tmp_path / "tiny.gguf", write_tiny_gemma3(tmp_path / "model"))


def test_gguf_is_converted_once(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = resolve_model("gguf", str(gguf_path), cache_dir=cache)
    assert first.parent == cache / "models"
    assert first.name.startswith("tiny-")
    assert load_config(first).num_layers == 7
    assert list((cache / "models").iterdir()) == [first]
    monkeypatch.setattr(resolve, "convert_gguf", lambda *_, **__: pytest.fail("converted again"))
    assert resolve_model("gguf", str(gguf_path), cache_dir=cache) == first


def test_changed_gguf_is_converted_again(gguf_path: Path, tmp_path: Path) -> None:
    first = resolve_model("gguf", str(gguf_path), cache_dir=tmp_path)
    os.utime(gguf_path, ns=(1, 1))
    assert resolve_model("gguf", str(gguf_path), cache_dir=tmp_path) != first


def test_cache_is_where_the_environment_says(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNESMITH_CACHE", str(tmp_path / "elsewhere"))
    assert resolve_model("gguf", str(gguf_path)).parent == tmp_path / "elsewhere" / "models"


def test_failed_conversion_leaves_nothing(gguf_path: Path, tmp_path: Path) -> None:
    gguf_path.write_bytes(gguf_path.read_bytes()[:-1])
    with pytest.raises(UserError, match="cut short"):
        resolve_model("gguf", str(gguf_path), cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_full_disk_is_said_plainly(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(resolve, "convert_gguf", full)
    with pytest.raises(UserError, match="failed: No space left on device") as refused:
        resolve_model("gguf", str(gguf_path), cache_dir=tmp_path / "cache")
    assert "TUNESMITH_CACHE" in str(refused.value.hint)


def test_unwritable_cache_is_said_plainly(gguf_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        resolve_model("gguf", str(gguf_path), cache_dir=tmp_path / "file")


def test_two_processes_converting_at_once_agree(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process finishes while this one converts."""
    cache = tmp_path / "cache"
    finished = resolve_model("gguf", str(gguf_path), cache_dir=cache)
    aside = shutil.move(finished, tmp_path / "aside")
    convert = resolve.convert_gguf

    def other_is_faster(*args: Any, **kwargs: Any) -> None:
        convert(*args, **kwargs)
        shutil.move(aside, finished)

    monkeypatch.setattr(resolve, "convert_gguf", other_is_faster)
    assert resolve_model("gguf", str(gguf_path), cache_dir=cache) == finished
    assert list((cache / "models").iterdir()) == [finished]
    assert load_config(finished).num_layers == 7


# -- Hub ----------------------------------------------------------------------------------------


def httpx() -> Any:
    """The HTTP library that this huggingface_hub uses: httpx, or its second version."""
    return importlib.import_module(HfHubHTTPError.__bases__[0].__module__.partition(".")[0])


def http_error(kind: str, status: int) -> Exception:
    """One of huggingface_hub's errors as raised for an HTTP answer."""
    request = httpx().Request("GET", f"{PAGE}/resolve/main/config.json")
    response = httpx().Response(status, request=request)
    return getattr(errors, kind)(f"{status} error", response=response)


@pytest.fixture
def hub_raises(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_error(error: Exception) -> None:
        def download(*_: Any, **__: Any) -> str:
            raise error

        monkeypatch.setattr("huggingface_hub.snapshot_download", download)

    return set_error


@pytest.mark.parametrize(
    ("kind", "status", "message", "hint"),
    [
        ("GatedRepoError", 403, "is gated", f"Open {PAGE} with your account"),
        ("GatedRepoError", 401, "is gated", "hf auth login"),
        ("RepositoryNotFoundError", 404, "does not exist on the Hub, or is private", PAGE),
        ("RevisionNotFoundError", 404, "has no revision 'v9'", f"{PAGE}/commits/main"),
        ("HfHubHTTPError", 401, r"refused access \(401\)", "HF_TOKEN"),
        ("HfHubHTTPError", 403, r"refused access \(403\)", f"Open {PAGE}"),
        ("DisabledRepoError", 403, r"refused access \(403\)", PAGE),
        ("HfHubHTTPError", 503, "answered 503", "later"),
    ],
)
def test_refusal_of_the_hub_tells_the_way(
    kind: str, status: int, message: str, hint: str, hub_raises: Any
) -> None:
    hub_raises(http_error(kind, status))
    with pytest.raises(UserError, match=message) as refused:
        resolve_model("hub", MODEL, "v9")
    assert MODEL in refused.value.message
    assert hint in str(refused.value.hint)


def test_refusal_behind_an_empty_cache_is_not_called_offline(hub_raises: Any) -> None:
    """huggingface_hub turns a 403 into "not in the cache" when it finds nothing there."""
    error = LocalEntryNotFoundError("An error happened while trying to locate the files")
    error.__cause__ = http_error("HfHubHTTPError", 403)
    hub_raises(error)
    with pytest.raises(UserError, match=r"refused access \(403\)"):
        resolve_model("hub", MODEL)


def test_offline_without_cache_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real call; tests run with HF_HUB_OFFLINE=1."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        UserError, match="not in the cache, and the Hub cannot be reached"
    ) as refused:
        resolve_model("hub", "nobody/no-such-model")
    assert "model.source: dir" in str(refused.value.hint)


def test_broken_connection_is_no_traceback(hub_raises: Any) -> None:
    hub_raises(httpx().ConnectError("connection reset by peer"))
    with pytest.raises(UserError, match=r"fetching .* failed: connection reset by peer"):
        resolve_model("hub", MODEL)


@pytest.mark.parametrize("model_id", ["a/b/c", "no spaces allowed", "x" * 200])
def test_malformed_hub_id_is_said(model_id: str) -> None:
    with pytest.raises(UserError, match="is not a Hub id"):
        resolve_model("hub", model_id)


def test_local_paths_under_hub_get_the_right_source(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a Hub id") as refused:
        resolve_model("hub", str(tmp_path))
    assert "`model.source: dir`" in str(refused.value.hint)


def test_snapshot_is_asked_for_the_revision_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def download(model_id: str, **kwargs: Any) -> str:
        asked.update(kwargs, id=model_id)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UserError, match=r"lacks config\.json"):
        resolve_model("hub", MODEL, "abc123")
    write_tiny_gemma3(tmp_path)
    assert resolve_model("hub", MODEL, "abc123") == tmp_path
    assert (asked["id"], asked["revision"]) == (MODEL, "abc123")
    assert {path.name for path in tmp_path.iterdir()} <= set(asked["allow_patterns"])
    assert "model-*.safetensors" in asked["allow_patterns"]
    assert not [pattern for pattern in asked["allow_patterns"] if "bin" in pattern]
