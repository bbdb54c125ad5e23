"""The tokenizer's wrapper. G numbers: known ways in which this goes wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Library

from tests.tiny import write_tiny_tokenizer
from tests.tiny_gemma4 import CONTROL
from tunesmith.data import tokenizer as module
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.errors import UserError


@pytest.fixture
def tiny(tmp_path: Path) -> Tokenizer:
    write_tiny_tokenizer(tmp_path)
    return Tokenizer.load(tmp_path)


def test_ids_of_a_text(tiny: Tokenizer) -> None:
    """Nothing is added: tokenizer.json asks for a BOS, which the data path adds itself (G2)."""
    assert tiny.encode("<start_of_turn>\n\n\nA") == [105, 108, 107, 398]
    assert tiny.encode("") == []
    assert tiny.decode([2, 105, 398, 106, 1]) == "A"
    assert tiny.decode([2, 398], skip_special=False) == "<bos>A"
    assert tiny.token(398) == "A"


def test_special_tokens(tiny: Tokenizer) -> None:
    assert (tiny.pad_id, tiny.eos_id, tiny.bos_id, tiny.turn_end_id) == (0, 1, 2, 106)
    assert tiny.stop_ids == (1, 106)
    assert tiny.vocab_size == 512
    assert tiny.chat_template is None
    assert tiny.special_tokens["<unused7>"] == 12


@pytest.mark.parametrize(
    ("named", "stops"),
    [
        ({}, (1, 106)),
        ({"eos_token_id": None}, (1, 106)),
        ({"eos_token_id": 1}, (1, 106)),
        ({"eos_token_id": [106, 1]}, (1, 106)),
        ({"eos_token_id": [1, 106, 50]}, (1, 106, 50)),
    ],
)
def test_generation_config_adds_stop_tokens(
    tmp_path: Path, named: dict[str, Any], stops: tuple[int, ...]
) -> None:
    """G1: Gemma 4's chat models stop at <eos>, <turn|> and <|tool_response>."""
    write_tiny_tokenizer(tmp_path, control=CONTROL)
    (tmp_path / "generation_config.json").write_text(json.dumps(named))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.stop_ids == stops
    names = {1: "<eos>", 106: "<turn|>", 50: "<|tool_response>"}
    assert tokenizer.stop_tokens == tuple(names[id] for id in stops)
    assert tokenizer.turn_end_id == 106


@pytest.mark.parametrize("id", [512, -1, "<eos>", True, [1, None]])
def test_stop_token_that_the_tokenizer_lacks_is_refused(tmp_path: Path, id: Any) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": id}))
    with pytest.raises(UserError, match=r"generation_config\.json: eos_token_id .* is no token"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a < b <unused> <unused-1> <UNUSED1>", None),
        ("a <unused12> b", "<unused12>"),
        ("<<unused1>>", "<unused1>"),
        ("x<end_of_turn>", "<end_of_turn>"),
        ("<end_of_turn", None),
    ],
)
def test_control_token_in_a_text(tiny: Tokenizer, text: str, found: str | None) -> None:
    assert tiny.special_token_in(text) == found


def test_only_edge_tokens_are_found_as_such(tiny: Tokenizer) -> None:
    assert tiny.edge_token_in("<start_of_turn>a<end_of_turn>") is None
    assert tiny.edge_token_in("a<eos>b<bos>") == "<eos>"


def test_truncation_and_padding_in_the_file_are_off(tmp_path: Path) -> None:
    """A tokenizer.json saved from a training run cuts every text in silence."""
    library = write_tiny_tokenizer(tmp_path)
    library.enable_truncation(4)
    library.enable_padding(length=8)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert len(tokenizer.encode("A" * 50)) == 50
    assert [len(ids) for ids in tokenizer.encode_batch(["A", "A" * 20])] == [1, 20]


def test_long_text_in_pieces_has_the_ids_of_the_whole(
    tiny: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G27: a long text is tokenised piece by piece, in bounded memory."""
    monkeypatch.setattr(module, "_PIECE_CHARS", 10)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    rng = random.Random(0)
    parts = [
        "the cat",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\n\n\n",
        "é",
        "\t",
        "sat,",
        "> </",
        "▁",
        "1",
        "<eos>",
    ]
    for _ in range(300):
        text = "".join(rng.choices(parts, k=40))
        whole = library.encode(text, add_special_tokens=False).ids
        assert tiny.encode(text) == whole
    assert tiny.encode("A" * 100) == [398] * 100  # nowhere to cut


def test_batch_gives_arrays_in_order(tiny: Tokenizer) -> None:
    arrays = tiny.encode_batch(["A", "", "B" * 3])
    assert [array.tolist() for array in arrays] == [[398], [], [399] * 3]
    assert all(array.dtype == np.int32 for array in arrays)


def test_fingerprint_follows_content(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    first = Tokenizer.load(tmp_path).fingerprint
    assert Tokenizer.load(tmp_path).fingerprint == first
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(settings | {"eos_token": "<unused1>"})
    )
    assert Tokenizer.load(tmp_path).fingerprint != first


def test_token_names_may_be_objects_and_may_be_missing(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "special_tokens_map.json").unlink()
    named = {"eos_token": {"content": "<unused3>", "lstrip": False}, "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<bos>", "<unused3>")
    assert tokenizer.stop_ids == (8, 106)


def test_missing_or_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json: cannot be read: No such file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json: damaged"):
        Tokenizer.load(tmp_path)
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json: damaged"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    with pytest.raises(UserError, match="has no token '<s>'"):
        Tokenizer.load(tmp_path)


@pytest.mark.heavy
def test_pieces_of_real_text_have_the_ids_of_the_whole(
    gemma_270m: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G27, on Gemma's own vocabulary."""
    monkeypatch.setattr(module, "_PIECE_CHARS", 30)
    library = Library.from_file(str(gemma_270m / "tokenizer.json"))
    tokenizer = Tokenizer.load(gemma_270m)
    text = (shared_data / "tinystories-sample.txt").read_text()
    text += (shared_data / "sql-create-context-train.jsonl").read_text()[:300_000]
    assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids
