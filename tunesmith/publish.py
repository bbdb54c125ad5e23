"""Push a run's export to the Hugging Face Hub: tried before training, done once at the end.

The token comes from the environment (`HF_TOKEN`) or from `hf auth login`. It goes to the Hub alone:
no file, no line and no error text holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith.engines.contract import Say
from tunesmith.errors import UserError
from tunesmith.recipe.schema import Recipe

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# Names folders of this machine, and quotes answers: nobody else's business.
_KEPT_HERE = "tunesmith-proof.json"


def check_hub(recipe: Recipe, say: Say) -> None:
    """See that `run.push_to_hub` can be written to. A repository that is missing is made, empty.

    Making it is the one sure way to learn that it may be made.

    Raises:
        UserError: no token, one that the Hub does not know, no right to write there, a repository
            that is public while `run.hub_private` is set, or no connection.
    """
    hub = _Hub.open(recipe)
    with hub.explained():
        hub.settle(say)


def push(recipe: Recipe, export_dir: Path, say: Say) -> str:
    """Upload an export to `run.push_to_hub`.

    Returns:
        The repository's URL.

    Raises:
        UserError: it failed; the export is where it was, and the message says how to push it.
    """
    try:
        hub = _Hub.open(recipe)
        with hub.explained():
            hub.settle(say)
            say(f"pushing the export to {hub.url}")
            hub.api.upload_folder(
                repo_id=hub.repo,
                folder_path=export_dir,
                ignore_patterns=[_KEPT_HERE],
                commit_message=f"Upload the model of tunesmith's recipe {recipe.name}",
            )
    except UserError as error:
        private = " --private" if recipe.run.hub_private else ""
        raise UserError(
            f"the run is finished, but its export is not on the Hub: {error.message}",
            f"{error.hint} Then start the same command again, which pushes what is missing; or: "
            f"hf upload{private} {recipe.run.push_to_hub} {export_dir} . --exclude {_KEPT_HERE}",
        ) from None
    return hub.url


@dataclass(frozen=True, slots=True)
class _Hub:
    """The repository that a recipe names, as seen with the user's token."""

    api: HfApi
    repo: str
    private: bool
    token: str

    @classmethod
    def open(cls, recipe: Recipe) -> _Hub:
        from huggingface_hub import HfApi, get_token

        repo, token = recipe.run.push_to_hub, get_token()
        assert repo is not None
        api = HfApi(token=token)
        if token is None:
            raise UserError(
                f"run.push_to_hub: there is no token to push to {repo} with",
                f"Make one that may write at {api.endpoint}/settings/tokens, and set HF_TOKEN or "
                "log in with `hf auth login`.",
            )
        return cls(api, repo, recipe.run.hub_private, token)

    @property
    def url(self) -> str:
        return f"{self.api.endpoint}/{self.repo}"

    def settle(self, say: Say) -> None:
        """See that the repository is there, may be written to and is as private as it should be."""
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

        account = self.api.whoami()["name"]
        try:
            self.api.auth_check(self.repo, write=True)
        except RepositoryNotFoundError:
            try:
                self.api.create_repo(self.repo, private=self.private)
            except HfHubHTTPError as error:
                if error.response.status_code != 409:
                    raise
                self.api.auth_check(self.repo, write=True)  # made by another process just now
            kind = "private" if self.private else "public"
            say(f"made {self.url}, {kind} and empty, as {account}")
            return
        if self.private and self.api.model_info(self.repo).private is False:
            raise UserError(
                f"run.push_to_hub: {self.repo} is public, and run.hub_private is true",
                "Name another repository, make this one private, or set run.hub_private: false.",
            )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn whatever the Hub or the way to it raises into a message without the token."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # uploads pass on whatever their transport raises
            raise self._explain(error) from None

    def _explain(self, error: Exception) -> UserError:
        from huggingface_hub import errors

        while isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):
            error = error.__cause__  # "error while uploading", because of …
        where = f"run.push_to_hub: {self.repo}"
        # httpx's, of whichever version huggingface_hub has.
        http_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]
        text = str(error).replace(self.token, "***").strip()
        tokens = f"{self.api.endpoint}/settings/tokens"
        if isinstance(error, errors.OfflineModeIsEnabled):
            return UserError(f"{where}: HF_HUB_OFFLINE is set", "Unset it.")
        if not isinstance(error, errors.HfHubHTTPError):
            if isinstance(error, http_error | OSError):
                text = f"the connection to the Hub failed: {text}"
            return UserError(
                f"{where}: {text}", f"See that this machine can reach {self.api.endpoint}."
            )
        status = error.response.status_code
        said = (error.server_message or text).replace(self.token, "***").strip()
        match status:
            case 401:
                return UserError(
                    f"{where}: the Hub does not know the token (401)",
                    f"Make a new one at {tokens}, and set HF_TOKEN or log in with `hf auth login`.",
                )
            case 402 | 403 | 404 | 409:
                return UserError(
                    f"{where}: the token may not write there ({status}: {said})",
                    f"Check the name. Its owner must be you or an organisation for which you may "
                    f"write, and so must the token: see {tokens}.",
                )
        return UserError(f"{where}: the Hub answered {status}: {said}", "Try again later.")
