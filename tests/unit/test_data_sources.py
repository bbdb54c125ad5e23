"""Finding files, here and behind URLs. G numbers: known ways in which this goes wrong."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry

from tests.data_recipe import rows_of
from tunesmith.data.files import Unreachable
from tunesmith.data.sources import find_files
from tunesmith.errors import UserError
from tunesmith.recipe.schema import Rows

LINE = '{"text": "a"}\n'


def found(folder: Path, *patterns: str, **options: Any) -> list[str]:
    rows = Rows(files=list(patterns), format="text", **options)
    return [file.name for file in find_files(rows, folder).files]


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(LINE)


# --- local --------------------------------------------------------------------------------------


def test_files_globs_and_folders(tmp_path: Path) -> None:
    make(tmp_path, "b.jsonl", "a.jsonl", "more/2.csv", "more/deep/1.txt.gz", "more/.hidden/x.txt")
    assert found(tmp_path, "b.jsonl", "a.jsonl") == ["b.jsonl", "a.jsonl"]
    assert found(tmp_path, "*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert found(tmp_path, "more/**/*.gz") == ["more/deep/1.txt.gz"]
    assert found(tmp_path, "more") == ["more/2.csv", "more/deep/1.txt.gz"]
    assert found(tmp_path / "more", "../a.jsonl") == [str(tmp_path / "a.jsonl")]
    assert found(tmp_path, str(tmp_path / "a.jsonl")) == ["a.jsonl"]


def test_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.jsonl")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert found(Path("/"), "~/a.jsonl") == [str(tmp_path / "a.jsonl").lstrip("/")]


def test_folder_whose_name_looks_like_a_glob(tmp_path: Path) -> None:
    make(tmp_path, "data[1]/a.jsonl")
    assert found(tmp_path / "data[1]", "*.jsonl") == ["a.jsonl"]
    assert found(tmp_path, "data[1]/a.jsonl") == ["data[1]/a.jsonl"]


def test_other_files_in_a_folder_are_named_as_left_aside(tmp_path: Path) -> None:
    make(tmp_path, "d/a.jsonl", "d/README.md", "d/dataset_infos.json")
    rows = Rows(files=["d"], format="text")
    assert find_files(rows, tmp_path).left_aside == ["README.md", "dataset_infos.json"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("trian.jsonl", r"no such file; \S+ holds train\.jsonl, zebra\.csv, …"),
        ("trian*.jsonl", r"matches no file; \S+ holds train\.jsonl, …"),
        ("dta/train.jsonl", r"no such file; \S+ holds data, …"),
        ("data", r"no data file; only README\.md found"),
        ("notes.xml", r"no data file; only notes\.xml found"),
        ("empty", r"no data file; the folder is empty"),
    ],
)
def test_nothing_found_names_the_nearest(tmp_path: Path, pattern: str, message: str) -> None:
    make(tmp_path, "train.jsonl", "zebra.csv", "data/README.md", "notes.xml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        found(tmp_path, pattern)


def test_file_named_twice_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "d/a.jsonl")
    with pytest.raises(
        UserError, match=r"d/a\.jsonl is named twice in `files`, .* by 'd/\./a\.jsonl'"
    ):
        found(tmp_path, "d", "d/./a.jsonl")


def test_text_file_needs_format_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match=r"a\.txt: a \.txt file has no fields"):
        rows_of(tmp_path, "a.txt", format="chat")


def test_folder_of_mixed_kinds_gives_all_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\none\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"two"))
    (tmp_path / "c.json").write_text('[{"text": "three"}]')
    rows, bad = rows_of(tmp_path, ".")
    assert [row.fields["text"] for row in rows] == ["one", "two", "three"]
    assert bad == []


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a.jsonl")

    def refuse(*args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything, so not by chmod
    with pytest.raises(UserError, match=r"a\.jsonl: no permission to read it"):
        rows_of(tmp_path, "a.jsonl")


# --- URLs ---------------------------------------------------------------------------------------


class FakeBucket(MemoryFileSystem):
    """A remote file system under another scheme; files of all tests are apart."""

    store: dict[str, Any] = {}  # noqa: RUF012  (fsspec's own way)
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    protocol = "gs"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("gs://").removeprefix("hf://").strip("/")

    def unstrip_protocol(self, name: str) -> str:
        return f"{self.protocol}://{name.removeprefix('/')}"


class FakeHub(FakeBucket):
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    protocol = "hf"


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[FakeBucket]]:
    fakes: dict[str, type[FakeBucket]] = {"gs": FakeBucket, "hf": FakeHub}
    for scheme, fake in fakes.items():
        fake.store.clear()
        fake.pseudo_dirs[:] = [""]
        monkeypatch.setitem(_registry, scheme, fake)
    return fakes


def put(fake: type[FakeBucket], *paths: str, content: bytes = LINE.encode()) -> None:
    for path in paths:
        fake().pipe_file(path, content)


def test_bucket_files_globs_and_folders(tmp_path: Path, remote: dict[str, Any]) -> None:
    put(remote["gs"], "b/d/1.jsonl", "b/d/2.jsonl", "b/e/3.csv", "b/d/README.md")
    assert found(tmp_path, "gs://b/d/2.jsonl") == ["gs://b/d/2.jsonl"]
    assert found(tmp_path, "gs://b/*/*[13].*") == ["gs://b/d/1.jsonl", "gs://b/e/3.csv"]
    assert found(tmp_path, "gs://b/d/") == ["gs://b/d/1.jsonl", "gs://b/d/2.jsonl"]
    rows, _ = rows_of(tmp_path, "gs://b/d")
    assert [str(row.where) for row in rows] == ["gs://b/d/1.jsonl:1", "gs://b/d/2.jsonl:1"]


def test_bucket_file_that_is_missing_names_the_nearest(
    tmp_path: Path, remote: dict[str, Any]
) -> None:
    put(remote["gs"], "b/d/train.jsonl")
    with pytest.raises(UserError, match=r"no such file; /b/d holds train\.jsonl"):
        found(tmp_path, "gs://b/d/trian.jsonl")


def test_missing_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_package(url: str) -> None:
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec, "url_to_fs", no_package)
    with pytest.raises(UserError) as told:
        found(tmp_path, "gs://b/a.jsonl")
    assert told.value.hint == "pip install 'tunesmith[gke]'"


def test_unknown_scheme(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ssx://a/b\.jsonl: no way to read it"):
        found(tmp_path, "ssx://a/b.jsonl")


HUB = "hf://datasets/someone/set"


@pytest.mark.parametrize(
    ("files", "split", "chosen"),
    [
        (["data/train-00000-of-00002-0123456789abcdef.parquet",
          "data/train-00001-of-00002-123456789abcdef0.parquet",
          "data/test-00000-of-00001.parquet", "README.md"], "train", [0, 1]),
        (["train.jsonl", "test.jsonl"], "test", [1]),
        (["train.csv", "train.parquet", "train.jsonl"], "train", [1]),  # one kind, not all
        (["train/a.jsonl", "train/b.jsonl", "validation/c.jsonl"], "train", [0, 1]),
        (["set_v4.json", "dataset_infos.json"], "train", [0]),  # nothing is named by a split
        (["train_sft.parquet", "train_gen.parquet"], "train_gen", [1]),
        (["contrain.jsonl", "train.jsonl"], "train", [1]),
    ],
)  # fmt: skip
def test_hub_data_set_by_id(
    tmp_path: Path, remote: dict[str, Any], files: list[str], split: str, chosen: list[int]
) -> None:
    put(remote["hf"], *(f"datasets/someone/set/{file}" for file in files))
    expected = [f"{HUB}/{files[at]}" for at in chosen]
    assert found(tmp_path, HUB, hub_split=split) == expected
    assert found(tmp_path, f"{HUB}/{files[0]}") == [f"{HUB}/{files[0]}"]


def test_hub_data_set_falls_back_to_the_converted_branch(
    tmp_path: Path, remote: dict[str, Any]
) -> None:
    branch = "datasets/someone/set@refs%2Fconvert%2Fparquet"
    put(remote["hf"], "datasets/someone/set/images.zip")
    put(remote["hf"], f"{branch}/default/train/0000.parquet", f"{branch}/default/test/0000.parquet")
    assert found(tmp_path, HUB) == [f"hf://{branch}/default/train/0000.parquet"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ["en/train.jsonl", "fr/train.jsonl"],
            r"several kinds of files match the split 'train': .*en",
        ),
        (
            ["train_sft.parquet", "train_gen.parquet"],
            "several kinds of files match the split 'train'",
        ),
        (["test.jsonl"], r"no file holds the split 'train'; it holds \S+/test\.jsonl"),
        (["README.md"], "no file holds the split 'train'; it holds no data files"),
    ],
)
def test_hub_data_set_that_needs_a_choice(
    tmp_path: Path, remote: dict[str, Any], files: list[str], message: str
) -> None:
    put(remote["hf"], *(f"datasets/someone/set/{file}" for file in files))
    with pytest.raises(UserError, match=message):
        found(tmp_path, HUB)


def test_converted_copy_that_is_not_whole_is_not_taken(
    tmp_path: Path, remote: dict[str, Any]
) -> None:
    branch = "datasets/someone/set@refs%2Fconvert%2Fparquet"
    put(remote["hf"], "datasets/someone/set/a.zip", f"{branch}/default/partial-train/0000.parquet")
    with pytest.raises(UserError, match="no file holds the split 'train'"):
        found(tmp_path, HUB)


# --- the web ------------------------------------------------------------------------------------


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A server on this machine, as plain as they come: no ranges, no ETag."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args: object) -> None:
            pass

        def send_head(self) -> Any:
            if self.path.startswith("/private"):
                self.send_error(403)
                return None
            return super().send_head()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_web_file_of_each_kind(tmp_path: Path, web: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    many = "".join(f'{{"text": "{n:01000d}"}}\n' for n in range(3000))  # several chunks
    (tmp_path / "a.jsonl").write_text(many)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(many.encode()))
    pq.write_table(pa.table({"text": [f"{n:01000d}" for n in range(3000)]}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.jsonl.gz", "a.parquet", "a.jsonl?download=true"):
        rows, bad = rows_of(tmp_path, f"{web}/{name}")
        assert [int(row.fields["text"]) for row in rows] == list(range(3000)), name
        assert bad == []


def test_web_file_that_is_missing_or_private(tmp_path: Path, web: str) -> None:
    with pytest.raises(UserError, match=r"/b\.jsonl: no such file") as told:
        rows_of(tmp_path, f"{web}/b.jsonl")
    assert told.value.exit_code == 2
    with pytest.raises(UserError, match=r"access is refused \(HTTP 403\)"):
        rows_of(tmp_path, f"{web}/private/b.jsonl")


def test_lost_connection_may_be_tried_again(tmp_path: Path, web: str) -> None:
    """A cluster tries again on exit code 76, and fails at once on 2."""
    gone = "http://127.0.0.1:1/a.jsonl"
    with pytest.raises(Unreachable, match="cannot be read now") as told:
        rows_of(tmp_path, gone)
    assert told.value.exit_code == 76
