"""GGUF → Hugging Face directory."""

from __future__ import annotations

import hashlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.tiny import write_tiny_gemma3
from tunesmith.errors import UserError
from tunesmith.models.catalog import load_config
from tunesmith.models.gguf import convert_gguf, fingerprint, origin_note, resolve_gguf
from tunesmith.models.gguf_file import GgufFile
from tunesmith.models.gguf_tokenizer import merges, tokenizer_json
from tunesmith.models.weights import read_weights

gguf = pytest.importorskip("gguf", reason="the `demo` extra is not installed")

from tests.tiny_gguf import (  # noqa: E402  (needs gguf)
    BYTE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    gguf_name,
    write_tiny_gguf,
)

Q8_0, Q4_0 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0
TEXT = "once upon a time, there was a <end_of_turn>\n\n\nquestion: é 日本 how many\tcities?"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_gemma3(tmp_path / "model", rope_scale=8.0)


@pytest.fixture
def gguf_path(model: Path, tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf", model)


def test_conversion_gives_back_the_model(model: Path, gguf_path: Path, tmp_path: Path) -> None:
    """Weights exactly (llama.cpp's norms are 1 + w), config and token ids too."""
    told: list[tuple[str, int, int]] = []
    convert_gguf(gguf_path, tmp_path / "out", progress=lambda *args: told.append(args))
    config = load_config(tmp_path / "out")
    assert config == load_config(model)
    original = read_weights(model, config)
    for name, tensor in read_weights(tmp_path / "out", config).items():
        # 1 + w - 1 in float32 rounds w to a multiple of 2^-24 or so.
        exact = not name.endswith("norm")
        np.testing.assert_allclose(tensor, original[name], rtol=0, atol=0 if exact else 2**-23)
    ids = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).encode(TEXT).ids
    assert ids == Tokenizer.from_file(str(model / "tokenizer.json")).encode(TEXT).ids
    assert told[-1] == ("converting tiny.gguf", 93, 93)
    assert len(told) == 93


def test_config_is_exact_where_gguf_is_not(gguf_path: Path, tmp_path: Path) -> None:
    """GGUF holds 1e-6 as a float32, 9.999999974752427e-07."""
    convert_gguf(gguf_path, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-6
    assert config["architectures"] == ["Gemma3ForCausalLM"]
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert config["torch_dtype"] == "float32"
    assert "quantization_config" not in config


def test_files_of_a_base_model(gguf_path: Path, tmp_path: Path) -> None:
    convert_gguf(gguf_path, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "converted_from.json",
        "generation_config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
    note = "weights dequantised from tiny.gguf (Q8_0)"
    assert origin_note(tmp_path / "out") == note
    assert origin_note(tmp_path) is None


def test_chat_template_and_turn_end_of_a_tuned_model_travel(model: Path, tmp_path: Path) -> None:
    extra = {"tokenizer.chat_template": "{{ bos_token }}ä", "tokenizer.ggml.eot_token_id": 106}
    path = write_tiny_gguf(tmp_path / "it.gguf", model, extra_metadata=extra)
    convert_gguf(path, tmp_path / "out")
    template = (tmp_path / "out" / "chat_template.jinja").read_text(encoding="utf-8")
    assert template == "{{ bos_token }}ä"
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [1, 106]


def test_bfloat16_is_written_on_request(gguf_path: Path, tmp_path: Path) -> None:
    convert_gguf(gguf_path, tmp_path / "out", dtype="bfloat16")
    weights = read_weights(tmp_path / "out", load_config(tmp_path / "out"), dtype=None)
    assert {tensor.dtype.name for tensor in weights.values()} == {"bfloat16"}


@pytest.mark.parametrize("quantization", [Q8_0, Q4_0, gguf.GGMLQuantizationType.BF16])
def test_dequantised_values_are_those_of_the_gguf_package(
    quantization: Any, model: Path, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "q.gguf", model, quantization=quantization)
    ours = GgufFile(path)
    for tensor in gguf.GGUFReader(path).tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(ours.read(tensor.name), expected)


def test_long_tensors_are_dequantised_to_their_end(tmp_path: Path) -> None:
    """Longer than one run of the reader, and not a multiple of it."""
    values = np.random.default_rng(0).standard_normal((1000, 352), dtype=np.float32)
    writer = gguf.GGUFWriter(tmp_path / "long.gguf", "gemma3")
    packed = gguf.quants.quantize(values, Q8_0)
    writer.add_tensor("x", packed, raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = gguf.quants.dequantize(packed, Q8_0)
    np.testing.assert_array_equal(GgufFile(tmp_path / "long.gguf").read("x"), expected)
    assert np.abs(expected - values).max() < 0.05


def test_metadata_is_that_of_the_gguf_package(gguf_path: Path) -> None:
    ours = GgufFile(gguf_path)
    theirs = gguf.GGUFReader(gguf_path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata.keys() == fields.keys()
    for key, value in fields.items():
        mine = ours.metadata[key]
        assert (mine.tolist() if isinstance(mine, np.ndarray) else mine) == value
    assert {name: t.start for name, t in ours.tensors.items()} == {
        t.name: t.data_offset for t in theirs.tensors
    }


@pytest.mark.parametrize("keep", [0, 3, 4, 20, 200, 9000, -1])
def test_cut_file_is_named(keep: int, gguf_path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"cut\.gguf"):
        convert_gguf(cut, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_noise_in_the_header_is_never_a_traceback(gguf_path: Path, tmp_path: Path) -> None:
    content = gguf_path.read_bytes()
    rng = np.random.default_rng(0)
    noisy = tmp_path / "noisy.gguf"
    refused = 0
    for _ in range(200):
        damaged = bytearray(content[:12_000])
        for at in rng.integers(4, 12_000, 3):
            damaged[at] = rng.integers(256)
        noisy.write_bytes(damaged + content[12_000:])
        try:
            GgufFile(noisy)
        except UserError:
            refused += 1
    assert refused > 20  # the noise did hit something


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architecture": "llama"}, "architecture 'llama' is not supported"),
        ({"leave_out": "blk.3.ffn_up.weight"}, r"missing: blk\.3\.ffn_up\.weight"),
        ({"extra_tensor": "output.weight"}, r"unexpected: output\.weight"),
        ({"leave_out": "token_embd.weight"}, "does not tell vocab_size"),
        ({"extra_metadata": {"split.count": 3}}, "is one of 3 parts"),
    ],
)
def test_other_gguf_is_refused(
    changes: dict[str, Any], says: str, model: Path, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "other.gguf", model, **changes)
    with pytest.raises(UserError, match=says):
        convert_gguf(path, tmp_path / "out")


def test_text_file_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(UserError, match="is not a GGUF file"):
        convert_gguf(tmp_path / "x.gguf", tmp_path / "out")


def test_names_of_llama_cpp_are_known_to_the_gguf_package() -> None:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, 1)
    keys = ["layers.0.self_attn.o_proj", "layers.0.pre_feedforward_layernorm", "norm"]
    for key in keys:
        assert names.get_name(f"model.{key}") + ".weight" == gguf_name(f"model.{key}.weight")


# A vocabulary in which the order of merges decides: "ab" before "bc" (rank by score, not by id).
TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "\n", "\n\n", "  ", "   ", "</b>", "a", "b", "c", "▁"]
TOKENS += [
    "bc",
    "ab",
    "abc",
    "▁a",
    "<",
    "/",
    ">",
    "b>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
]
TYPES = [CONTROL] * 4 + [USER_DEFINED] * 5 + [NORMAL] * 12 + [BYTE] * 256
SCORES = [-1000.0] * 9 + [-20.0] * 4 + [-3.0, -2.0, -4.0, -1.0] + [-20.0] * 3 + [-5.0] + [0.0] * 256


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abc", ["abc"]),  # ab, then abc; bc first would give a + bc = abc as well
        ("bcb", ["bc", "b"]),
        ("bab", ["b", "ab"]),
        ("a a", ["a", "▁a"]),
        ("a  a", ["a", "▁▁", "a"]),  # a run of spaces is never cut, though ▁a ranks higher
        ("a   a", ["a", "▁▁▁", "a"]),
        ("a    a", ["a", "▁▁", "▁▁", "a"]),
        ("\n\n\n", ["\n\n", "\n"]),
        ("a</b>b", ["a", "</b>", "b"]),
        ("é", ["<0xC3>", "<0xA9>"]),
        ("<eos>a", ["<eos>", "a"]),
    ],
)
def test_tokenizer_from_scores(text: str, pieces: list[str]) -> None:
    built = tokenizer_json(TOKENS, SCORES, TYPES, bos="<bos>")
    tokenizer = Tokenizer.from_str(json.dumps(built))
    encoded = tokenizer.encode(text)
    assert encoded.tokens == ["<bos>", *pieces]
    assert tokenizer.decode(encoded.ids[1:], skip_special_tokens=False) == text


def test_merges_are_ranked_by_score() -> None:
    tokens = ["a", "b", "c", "bc", "ab", "abc"]
    assert merges(tokens, [-9.0, -9.0, -9.0, -3.0, -2.0, -4.0], [NORMAL] * 6) == [
        ("a", "b"),
        ("b", "c"),
        ("ab", "c"),
        ("a", "bc"),
    ]


def test_other_tokenizer_is_refused(gguf_path: Path, tmp_path: Path) -> None:
    content = gguf_path.read_bytes()
    name = b"tokenizer.ggml.model" + (8).to_bytes(4, "little") + (5).to_bytes(8, "little")
    changed = content.replace(name + b"llama", name + b"gpt-2")
    assert changed != content
    (tmp_path / "gpt.gguf").write_bytes(changed)
    with pytest.raises(UserError, match=r"no Gemma tokenizer: tokenizer\.ggml\.model is 'gpt-2'"):
        convert_gguf(tmp_path / "gpt.gguf", tmp_path / "out")


def fake_package(monkeypatch: pytest.MonkeyPatch, chunks: list[Path], sha256: str) -> None:
    package = types.ModuleType("tiny_gguf_model")
    package.MODEL_NAME = "tiny.gguf"  # type: ignore[attr-defined]
    package.EXPECTED_SHA256 = sha256  # type: ignore[attr-defined]
    package.chunk_paths = lambda: chunks  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tiny_gguf_model", package)


def split(path: Path, folder: Path) -> list[Path]:
    content = path.read_bytes()
    chunks = [folder / "part0", folder / "part1"]
    chunks[0].write_bytes(content[:1000])
    chunks[1].write_bytes(content[1000:])
    return chunks


def test_package_with_chunks_is_joined(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hashlib.sha256(gguf_path.read_bytes()).hexdigest()
    fake_package(monkeypatch, split(gguf_path, tmp_path), digest)
    work = tmp_path / "work"
    work.mkdir()
    joined = resolve_gguf("pypi:tiny-gguf-model", work)
    assert joined == work / "tiny.gguf"
    assert joined.read_bytes() == gguf_path.read_bytes()
    assert fingerprint("pypi:tiny-gguf-model") == ("tiny", digest)


def test_package_with_other_content_is_refused(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = split(gguf_path, tmp_path)
    fake_package(monkeypatch, chunks, "0" * 64)
    with pytest.raises(UserError, match="SHA-256"):
        resolve_gguf("pypi:tiny-gguf-model", tmp_path)
    chunks[1].unlink()
    with pytest.raises(UserError, match="part1 is missing"):
        resolve_gguf("pypi:tiny-gguf-model", tmp_path)


def test_missing_package_gets_the_install_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not installed completely") as refused:
        resolve_gguf("pypi:no-such-gguf-package", tmp_path)
    assert refused.value.hint == "pip install 'tunesmith[demo]'"


def test_missing_gguf_library_gets_the_install_line(
    gguf_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match="needs the package gguf") as refused:
        convert_gguf(gguf_path, tmp_path / "out")
    assert refused.value.hint == "pip install 'tunesmith[demo]'"


def test_package_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not ship a GGUF"):
        resolve_gguf("pypi:json", tmp_path)


def test_path_must_be_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a file"):
        resolve_gguf(str(tmp_path), tmp_path)
