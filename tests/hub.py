"""A stand-in for the Hugging Face Hub: the part of its HTTP interface that pushing a model uses.

Requests and answers are those of huggingface_hub 1.5 to 2.4 with `HF_HUB_DISABLE_XET=1`: large
files go through the Git LFS batch interface, small ones inside the commit. Xet's own storage is not
stood in for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


class Refused(Exception):
    """An answer other than 200.

    Args:
        status: HTTP's.
        error: what the Hub says.
        code: its `X-Error-Code`.
    """

    def __init__(self, status: int, error: str, code: str | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.code = status, error, code


@dataclass
class Account:
    """Who a token belongs to, and for which owners it may write."""

    name: str
    writes_for: tuple[str, ...]


@dataclass
class Repo:
    """A model repository: its files, and the message of each commit."""

    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)


class Hub:
    """What the Hub knows, and what it was asked.

    Attributes:
        url: for `HF_ENDPOINT`.
        accounts: by token.
        repos: by id.
        requests: method and path of each, in order.
        refuse: answers to give instead, once, by the start of "METHOD /path".
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.accounts: dict[str, Account] = {}
        self.repos: dict[str, Repo] = {}
        self.requests: list[str] = []
        self.refuse: dict[str, Refused] = {}
        self._large: dict[str, bytes] = {}

    def answer(self, method: str, path: str, token: str | None, body: bytes) -> Any:
        """Answer one request; a dictionary becomes JSON."""
        self.requests.append(f"{method} {path}")
        for start in list(self.refuse):
            if f"{method} {path}".startswith(start):
                raise self.refuse.pop(start)
        if method == "PUT":  # to storage elsewhere, by an address that is right enough
            return self._store(path.removeprefix("/storage/"), body)
        account = self.accounts.get(token or "")
        if account is None:
            raise Refused(401, "Invalid credentials in Authorization header")
        for pattern, handle in _ROUTES.items():
            if found := re.fullmatch(pattern, f"{method} {path}"):
                return handle(self, account, body, **found.groupdict())
        raise Refused(501, f"the stand-in has no {method} {path}")

    def _store(self, oid: str, body: bytes) -> dict[str, Any]:
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refused(400, "the content has another digest")
        self._large[oid] = body
        return {}

    def whoami(self, account: Account, body: bytes) -> dict[str, Any]:
        return {"type": "user", "name": account.name, "orgs": []}

    def auth_check(self, account: Account, body: bytes, repo: str) -> dict[str, Any]:
        self._writable(account, repo)
        return {}

    def model_info(self, account: Account, body: bytes, repo: str) -> dict[str, Any]:
        self._visible(account, repo)
        return {"id": repo, "private": self.repos[repo].private, "siblings": []}

    def create(self, account: Account, body: bytes) -> dict[str, Any]:
        asked = json.loads(body)
        repo = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] not in account.writes_for:
            raise Refused(403, f"You don't have the rights to create a model under {repo}")
        if repo in self.repos:
            raise Refused(409, "You already created this model repo")
        private = asked.get("private", asked.get("visibility") == "private")
        self.repos[repo] = Repo(private)
        return {"url": f"{self.url}/{repo}"}

    def preupload(self, account: Account, body: bytes, repo: str) -> dict[str, Any]:
        self._writable(account, repo)
        return {
            "files": [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
        }

    def lfs_batch(self, account: Account, body: bytes, repo: str) -> dict[str, Any]:
        self._writable(account, repo)
        objects = json.loads(body)["objects"]
        for wanted in objects:
            if wanted["oid"] not in self._large:
                actions = {"upload": {"href": f"{self.url}/storage/{wanted['oid']}"}}
                actions["verify"] = {"href": f"{self.url}/{repo}/verify"}
                wanted["actions"] = actions
        return {"transfer": "basic", "objects": objects}

    def lfs_verify(self, account: Account, body: bytes, repo: str) -> dict[str, Any]:
        asked = json.loads(body)
        if len(self._large.get(asked["oid"], b"")) != asked["size"]:
            raise Refused(422, "the content is not here")
        return {}

    def commit(self, account: Account, body: bytes, repo: str) -> dict[str, Any]:
        self._writable(account, repo)
        changed = self.repos[repo]
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                changed.commits.append(value["summary"])
            elif entry["key"] == "file":
                changed.files[value["path"]] = base64.b64decode(value["content"])
            else:
                changed.files[value["path"]] = self._large[value["oid"]]
        oid = f"{len(changed.commits):040x}"
        return {"commitUrl": f"{self.url}/{repo}/commit/{oid}", "commitOid": oid}

    def _visible(self, account: Account, repo: str) -> None:
        hidden = repo not in self.repos or (
            self.repos[repo].private and repo.partition("/")[0] not in account.writes_for
        )
        if hidden:
            raise Refused(404, "Repository not found", "RepoNotFound")

    def _writable(self, account: Account, repo: str) -> None:
        self._visible(account, repo)
        if repo.partition("/")[0] not in account.writes_for:
            raise Refused(403, "You have read access but not the required permissions")


_REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
_ROUTES: dict[str, Callable[..., Any]] = {
    r"GET /api/whoami-v2": Hub.whoami,
    rf"GET /api/models/{_REPO}/auth-check/write": Hub.auth_check,
    rf"GET /api/models/{_REPO}": Hub.model_info,
    r"POST /api/repos/create": Hub.create,
    rf"POST /api/models/{_REPO}/preupload/main": Hub.preupload,
    rf"POST /{_REPO}\.git/info/lfs/objects/batch": Hub.lfs_batch,
    rf"POST /{_REPO}/verify": Hub.lfs_verify,
    rf"POST /api/models/{_REPO}/commit/main": Hub.commit,
}


@contextmanager
def connected_hub(home: Path) -> Iterator[Hub]:
    """The stand-in, where huggingface_hub looks for the Hub from now on.

    In the environment is Ada's `TOKEN`; she may write for herself and for a lab. A login would lie
    in `home`.
    """
    from huggingface_hub import constants

    with serve_hub() as hub, pytest.MonkeyPatch.context() as patch:
        # Read from the environment when huggingface_hub was imported.
        patch.setattr(constants, "ENDPOINT", hub.url)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        patch.setenv("HF_TOKEN", TOKEN)
        hub.accounts[TOKEN] = Account("ada", ("ada", "lab"))
        yield hub


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Stand in for the Hub on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
            status, headers = 200, {}
            try:
                answer = hub.answer(self.command, self.path.partition("?")[0], token, self.body())
            except Refused as refused:
                status, answer = refused.status, {"error": refused.error}
                headers = {"X-Error-Message": refused.error}
                if refused.code:
                    headers["X-Error-Code"] = refused.code
            content = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = handle_any

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = Hub(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
