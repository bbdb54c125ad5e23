"""Pushing to the Hub, against a stand-in of its HTTP interface on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub import TOKEN, Account, Hub, Refused, Repo, connected_hub
from tests.tiny import write_tiny_gemma3
from tests.tiny_engine import collect, tiny_recipe
from tunesmith.errors import UserError
from tunesmith.publish import check_hub, push
from tunesmith.recipe.schema import Recipe

# huggingface_hub's own use of httpx, when it puts large files.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with connected_hub(tmp_path) as hub:
        yield hub


def recipe_for(repo: str, **run: Any) -> Recipe:
    return tiny_recipe(Path("model"), run={"push_to_hub": repo, **run})


def refusal(recipe: Recipe) -> str:
    with pytest.raises(UserError) as caught:
        check_hub(recipe, collect()[1])
    assert TOKEN not in str(caught.value)
    return str(caught.value)


# --- before training -----------------------------------------------------------------------------


def test_a_missing_repository_is_made_private(hub: Hub) -> None:
    said, say = collect()
    check_hub(recipe_for("lab/tiny"), say)
    assert hub.repos == {"lab/tiny": Repo(private=True)}
    assert said == [f"made {hub.url}/lab/tiny, private and empty, as ada"]
    check_hub(recipe_for("lab/tiny"), say)  # now it is there
    assert len(said) == 1
    check_hub(recipe_for("ada/open", hub_private=False), say)
    assert hub.repos["ada/open"] == Repo(private=False)


def test_two_machines_may_make_it_at_once(hub: Hub) -> None:
    hub.repos["ada/tiny"] = Repo(private=True)
    hub.refuse["GET /api/models/ada/tiny/"] = Refused(404, "not yet", "RepoNotFound")
    check_hub(recipe_for("ada/tiny"), collect()[1])
    assert [request.split()[1] for request in hub.requests] == [
        "/api/whoami-v2",
        "/api/models/ada/tiny/auth-check/write",
        "/api/repos/create",
        "/api/models/ada/tiny/auth-check/write",
    ]


def test_a_public_repository_takes_a_private_model_only_if_asked(hub: Hub) -> None:
    hub.repos["ada/tiny"] = Repo(private=False)
    told = refusal(recipe_for("ada/tiny"))
    assert "run.push_to_hub: ada/tiny is public, and run.hub_private is true" in told
    assert "set run.hub_private: false" in told
    check_hub(recipe_for("ada/tiny", hub_private=False), collect()[1])


def test_no_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    told = refusal(recipe_for("ada/tiny"))
    assert "there is no token to push to ada/tiny with" in told
    assert f"{hub.url}/settings/tokens" in told
    assert "`hf auth login`" in told
    assert hub.requests == []


def test_the_token_of_a_login_is_taken_too(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(TOKEN)
    check_hub(recipe_for("ada/tiny"), collect()[1])
    assert "ada/tiny" in hub.repos


def test_a_token_that_the_hub_does_not_know(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    told = refusal(recipe_for("ada/tiny"))
    assert "the Hub does not know the token (401)" in told
    assert f"Make a new one at {hub.url}/settings/tokens" in told
    assert "hf_old" not in told


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("private", [True, False])
def test_no_right_to_the_owner(hub: Hub, exists: bool, private: bool) -> None:
    if exists:
        hub.repos["eve/tiny"] = Repo(private)
    told = refusal(recipe_for("eve/tiny", hub_private=private))
    assert "run.push_to_hub: eve/tiny: the token may not write there (403" in told
    assert "Its owner must be you or an organisation" in told


def test_a_token_that_may_only_read(hub: Hub) -> None:
    hub.accounts[TOKEN] = Account("ada", ())
    assert "may not write there (403: You don't have the rights" in refusal(recipe_for("ada/tiny"))
    hub.repos["ada/tiny"] = Repo(private=False)
    assert "may not write there (403: You have read access" in refusal(recipe_for("ada/tiny"))


def test_no_connection(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    told = refusal(recipe_for("ada/tiny"))
    assert "run.push_to_hub: ada/tiny: the connection to the Hub failed: " in told
    assert "See that this machine can reach http://127.0.0.1:9." in told
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set\n  Unset it." in refusal(recipe_for("ada/tiny"))


def test_a_hub_in_trouble_and_one_that_echoes_the_token(hub: Hub) -> None:
    hub.refuse["GET /api/whoami-v2"] = Refused(503, f"no service for {TOKEN}")
    told = refusal(recipe_for("ada/tiny"))
    assert "the Hub answered 503: " in told
    assert "no service for ***" in told


# --- at the end ----------------------------------------------------------------------------------


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """What stands for an export: a model, and the proof that stays here."""
    folder = write_tiny_gemma3(tmp_path / "run" / "export")
    (folder / "tunesmith-proof.json").write_text(json.dumps({"path": str(folder)}))
    return folder


def test_the_export_arrives_byte_for_byte_in_one_commit(hub: Hub, exported: Path) -> None:
    """Weights through LFS, the rest inside the commit; what names local folders stays here."""
    said, say = collect()
    assert push(recipe_for("ada/tiny"), exported, say) == f"{hub.url}/ada/tiny"
    repo = hub.repos["ada/tiny"]
    files = {path.name: path.read_bytes() for path in exported.iterdir()}
    del files["tunesmith-proof.json"]
    assert repo.files == files
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files.keys()
    assert repo.commits == ["Upload the model of tunesmith's recipe tiny"]
    assert repo.private
    assert sum(request.startswith("PUT /storage/") for request in hub.requests) == 1
    assert said[-1] == f"pushing the export to {hub.url}/ada/tiny"


@pytest.mark.parametrize(
    ("where", "refused", "reason"),
    [
        ("POST /api/models/", Refused(403, "storage limit"), "(403: "),
        ("POST /ada/tiny.git", Refused(403, "storage limit"), "(403: "),
        ("PUT", Refused(400, "too slow"), "the Hub answered 400"),
        ("GET /api/whoami-v2", Refused(401, "expired"), "does not know the token"),
    ],
)
def test_a_push_that_fails_says_how_to_push_again(
    hub: Hub, exported: Path, where: str, refused: Refused, reason: str
) -> None:
    hub.refuse[where] = refused
    with pytest.raises(UserError) as caught:
        push(recipe_for("ada/tiny"), exported, collect()[1])
    told = str(caught.value)
    assert "the run is finished, but its export is not on the Hub: " in told
    assert reason in told
    assert "start the same command again" in told
    assert f"hf upload --private ada/tiny {exported} . --exclude tunesmith-proof.json" in told
    assert TOKEN not in told
    push(recipe_for("ada/tiny"), exported, collect()[1])
    assert len(hub.repos["ada/tiny"].commits) == 1
