"""A data set of the Hugging Face Hub by id: which of its files hold the rows of a split."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tunesmith.data.files import DataFile, data_file, explained, filesystem_of
from tunesmith.errors import UserError

_PREFIX = "hf://datasets/"
# The Hub keeps a copy of most data sets here, as CONFIG/SPLIT/0000.parquet; SPLIT is
# `partial-train` where the copy is not whole, which never equals a split's name.
# (https://huggingface.co/docs/dataset-viewer/parquet)
_CONVERTED = "@refs%2Fconvert%2Fparquet"
_PREFERRED = ("parquet", "jsonl", "json", "csv", "txt")
# Names by which the Hub knows splits; files without any of them are all training rows.
_SPLITS = (
    "train",
    "training",
    "test",
    "testing",
    "eval",
    "evaluation",
    "validation",
    "valid",
    "val",
    "dev",
)


def dataset_of(url: str) -> str | None:
    """`hf://datasets/OWNER/NAME[@REVISION]` if the URL is a data set's own, else None."""
    inside = url.removeprefix(_PREFIX).rstrip("/")
    return _PREFIX + inside if url.startswith(_PREFIX) and inside.count("/") == 1 else None


def split_files(dataset: str, split: str) -> list[str]:
    """URLs of the files with a split's rows.

    Files named or foldered by the split come first; then, for `train`, all files if none is named
    by any split; last the Parquet copy that the Hub makes itself.

    Args:
        dataset: `hf://datasets/OWNER/NAME`, a revision after `@` allowed.
        split: `data.*.hub_split`.

    Raises:
        UserError: no file holds the split, or it is not plain which of them to take.
    """
    files = _data_files(dataset)
    named = [file for file in files if _names(file, split)]
    if (
        not named
        and split == "train"
        and not any(_names(file, s) for file in files for s in _SPLITS)
    ):
        named = files
    if not named and "@" not in dataset:
        converted = _data_files(dataset + _CONVERTED)
        named = [file for file in converted if file.path.split("/")[-2] == split]
        files += converted
    if not named:
        holds = (
            f"it holds {_listing(file.path for file in files)}"
            if files
            else "it holds no data files"
        )
        raise UserError(
            f"{dataset}: no file holds the split {split!r}; {holds}",
            "Set `hub_split`, or name files as hf://datasets/OWNER/NAME/FILE.",
        )
    kind = min((file.kind for file in named), key=_PREFERRED.index)
    chosen = [file.path for file in named if file.kind == kind]
    groups = {_group(url, split): url for url in chosen}
    if len(groups) > 1:
        raise UserError(
            f"{dataset}: several kinds of files match the split {split!r}: "
            + _listing(groups.values()),
            "Choose by `files: [hf://datasets/OWNER/NAME/FOLDER/*]` or a longer `hub_split`.",
        )
    return chosen


def _data_files(dataset: str) -> list[DataFile]:
    filesystem, path = filesystem_of(dataset)
    if dataset.endswith(_CONVERTED) and not filesystem.exists(path):
        return []
    with explained(dataset):
        urls = sorted(filesystem.unstrip_protocol(file) for file in filesystem.find(path))
    return [file for url in urls if (file := data_file(url))]


def _names(file: DataFile, split: str) -> bool:
    """Whether the split is a word of the file's name or of a folder in its repository."""
    inside = file.path.removeprefix(_PREFIX).split("/", 2)[2]
    return (
        re.search(rf"(?:^|[^a-z0-9]){re.escape(split.lower())}(?:[^a-z0-9]|$)", inside.lower())
        is not None
    )


def _group(url: str, split: str) -> str:
    """The same for the shards of one split, different for other configurations and languages."""
    folder, found, _ = url.partition(f"/{split}/")
    return folder if found else re.sub(r"-[0-9a-f]{16}\b|\d+", "", url)


def _listing(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
