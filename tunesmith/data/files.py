"""One data file, on this machine or behind a URL: what it is and how its content is read."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from tunesmith.errors import EXIT_PEER_LOST, UserError

Kind = Literal["txt", "jsonl", "json", "csv", "parquet"]
KINDS: tuple[Kind, ...] = ("txt", "jsonl", "json", "csv", "parquet")
READABLE = "Readable are .txt, .jsonl, .json, .csv and .parquet, each also with .gz."

CHUNK_BYTES = 1 << 20
# Files that Hub repositories hold beside their rows.
_NO_DATA = ("dataset_infos.json", "dataset_info.json")
# What file systems tell of a file that changes with its content.
_VERSION_KEYS = ("size", "etag", "mtime", "updated", "generation", "md5hash", "crc32c", "blob_id")


class Unreachable(UserError):
    """A remote file could not be fetched; the same command may work later."""

    exit_code = EXIT_PEER_LOST


class CutShort(Exception):
    """A compressed file ends too early or is damaged; the message says which."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of rows.

    Attributes:
        path: absolute path or URL.
        name: as messages show it.
        kind: from the suffix.
        gzipped: whether `.gz` follows the suffix.
    """

    path: str
    name: str
    kind: Kind
    gzipped: bool

    def chunks(self) -> Iterator[bytes]:
        """The content, unpacked, in pieces of at most CHUNK_BYTES, none of them empty.

        Raises:
            UserError: there is no such file or it may not be read.
            CutShort: the packed content ends too early; what came before is given first.
        """
        with self._open() as raw, explained(self.path):
            # read1 hands out what is unpacked before the error of a cut file can swallow it.
            read = gzip.GzipFile(fileobj=raw).read1 if self.gzipped else raw.read
            while chunk := read(CHUNK_BYTES):
                yield chunk

    @contextlib.contextmanager
    def seekable(self) -> Iterator[BinaryIO]:
        """The content as a file to seek in; a packed or streamed one is unpacked to disk first."""
        if not self.gzipped and not is_web(self.path):
            with self._open() as raw:
                yield raw
            return
        with tempfile.TemporaryFile() as unpacked:
            for chunk in self.chunks():
                unpacked.write(chunk)
            unpacked.seek(0)
            yield unpacked

    def identity(self, sha256_of: Callable[[Path], str]) -> str:
        """What changes when the content changes, wherever a local file lies.

        Args:
            sha256_of: gives the digest of a local file; a cache of digests may stand behind it.

        Returns:
            The digest of a local file; for a remote one a digest of its URL and of its size,
            time and tags as the server tells them.
        """
        if not is_url(self.path):
            return sha256_of(Path(self.path))
        filesystem, path = filesystem_of(self.path)
        with explained(self.path):
            info = filesystem.info(path)
        told = {key: value for key, value in info.items() if key.lower() in _VERSION_KEYS}
        text = json.dumps([self.path, told], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def _open(self) -> BinaryIO:
        with explained(self.path):
            if not is_url(self.path):
                return Path(self.path).open("rb")
            filesystem, path = filesystem_of(self.path)
            # A web server need not serve ranges; 0 asks for one stream from front to back.
            options = {"block_size": 0} if is_web(self.path) else {}
            return cast(BinaryIO, filesystem.open(path, "rb", **options))


def is_url(path: str) -> bool:
    """Whether fsspec reads it, rather than the file system of this machine."""
    return "://" in path


def is_web(path: str) -> bool:
    """Whether a web server gives it, from front to back only."""
    return path.startswith(("http://", "https://"))


def data_file(path: str, base_dir: Path | None = None) -> DataFile | None:
    """The file as a DataFile, or None if its suffix is not one of a data file.

    Args:
        path: absolute path or URL.
        base_dir: folder that messages leave out of the name.
    """
    bare = path.partition("?")[0].partition("#")[0] if is_web(path) else path
    base = os.path.basename(bare)
    gzipped = base.lower().endswith(".gz")
    suffix = os.path.splitext(base[:-3] if gzipped else base)[1].lower().removeprefix(".")
    if suffix not in KINDS or base in _NO_DATA:
        return None
    inside = base_dir is not None and not is_url(path) and Path(path).is_relative_to(base_dir)
    name = os.path.relpath(path, base_dir) if inside else path
    return DataFile(path, name, cast(Kind, suffix), gzipped)


def filesystem_of(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    Raises:
        UserError: the scheme is unknown or its package is missing.
    """
    import fsspec

    try:
        return fsspec.url_to_fs(url)
    except ImportError as error:
        google = url.startswith(("gs://", "gcs://"))
        hint = "pip install 'tunesmith[gke]'" if google else str(error)
        raise UserError(f"{url}: a package that reads it is not installed", hint) from error
    except ValueError as error:
        raise UserError(
            f"{url}: no way to read it: {error}", "Known are gs://, https:// and hf://datasets/…"
        ) from error


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns what file systems raise into messages; surprises with local files stay as they are."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CutShort("the compressed file is cut short or damaged") from error
    except UserError:
        raise
    except PermissionError as error:
        raise UserError(f"{path}: no permission to read it", _access_hint(path)) from error
    except FileNotFoundError as error:
        raise _not_found(path, error) from error
    except Exception as error:
        if not is_url(path):
            raise
        # Each file system has types of its own for a lost connection or a missing login.
        raise _not_found(path, error) from error


def _not_found(path: str, error: Exception) -> UserError:
    """What a failure means: the server's refusal is final, a lost connection is not."""
    cause = error.__cause__ or error
    status = getattr(cause, "status", None) or getattr(cause, "code", None)
    status = status or getattr(getattr(cause, "response", None), "status_code", None)
    status = status if isinstance(status, int) else None
    if status in (401, 403):
        return UserError(f"{path}: access is refused (HTTP {status})", _access_hint(path))
    refused = status is not None and 400 <= status < 500 and status != 429
    if refused or isinstance(cause, (FileNotFoundError, ValueError)):
        return UserError(
            f"{path}: no such file", "Check the name, and that the account may see it."
        )
    return Unreachable(
        f"{path}: cannot be read now: {type(cause).__name__}: {cause}",
        "Check the connection and start the same command again.",
    )


def _access_hint(path: str) -> str:
    if path.startswith("hf://"):
        page = "/".join(path.removeprefix("hf://").split("@")[0].split("/")[:3])
        return f"Visit https://huggingface.co/{page}, accept its terms, then run `hf auth login`."
    if path.startswith("gs://"):
        return (
            "Run `gcloud auth application-default login` with an account that may read the bucket."
        )
    return "Check who may read it."
