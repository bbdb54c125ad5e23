"""Checkpoint ↔ parameters, through safetensors."""

from __future__ import annotations

import dataclasses
import json
import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.tiny import write_tiny_gemma3
from tunesmith.errors import UserError
from tunesmith.models.catalog import GEMMA3_SIZES, load_config, parse_gemma3
from tunesmith.models.tensor_files import TensorFiles
from tunesmith.models.weights import module_path, parameter_specs, read_weights, write_weights

PREFIXES = ["model.", "language_model.model.", "model.language_model."]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def change(directory: Path, **tensors: np.ndarray | None) -> None:
    """Sets tensors of a directory's weights, or removes those given as None."""
    stored = load_file(directory / WEIGHTS)
    for key, tensor in tensors.items():
        if tensor is None:
            del stored[key]
        else:
            stored[key] = tensor
    save_file(stored, directory / WEIGHTS)


def shard(directory: Path) -> dict[str, str]:
    """Splits a directory's weights over two files and returns the index's weight_map."""
    stored = load_file(directory / WEIGHTS)
    (directory / WEIGHTS).unlink()
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weight_map = {key: files[n % 2] for n, key in enumerate(stored)}
    for file in files:
        part = {key: stored[key] for key, at in weight_map.items() if at == file}
        save_file(part, directory / file)
    write_index(directory, weight_map)
    return weight_map


def write_index(directory: Path, weight_map: Any) -> None:
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


# As others count the published text models; from 4B up Hugging Face's vocabulary has 64 ids more.
@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("270m", 268_098_176),
        ("1b", 999_885_952),
        ("4b", 3_880_099_328 + 64 * 2560),
        ("12b", 11_765_788_416 + 64 * 3840),
        ("27b", 27_009_002_240 + 64 * 5376),
    ],
)
def test_parameter_count_of_each_size(size: str, count: int) -> None:
    config = parse_gemma3(GEMMA3_SIZES[size], Path("config.json"), weight_prefix="model.")
    assert sum(math.prod(spec.shape) for spec in parameter_specs(config).values()) == count


@pytest.mark.parametrize("prefix", PREFIXES)
def test_keys_and_shapes_are_those_of_the_checkpoint(prefix: str, tmp_path: Path) -> None:
    """G31: what an export writes has the base model's keys and shapes."""
    directory = write_tiny_gemma3(tmp_path, prefix=prefix)
    config = load_config(directory)
    stored = load_file(directory / WEIGHTS)
    text = {key: tensor.shape for key, tensor in stored.items() if key.startswith(prefix)}
    text = {key: shape for key, shape in text.items() if "vision" not in key and "multi" not in key}
    assert {spec.hf_key: spec.shape for spec in parameter_specs(config).values()} == text
    weights = read_weights(directory, config)
    assert set(weights.tower_keys) == stored.keys() - text.keys()
    assert len(weights.tower_keys) == (0 if prefix == "model." else 23)
    assert {key for key, _ in weights.towers()} == set(weights.tower_keys)


def test_names_are_stable(tmp_path: Path) -> None:
    config = load_config(write_tiny_gemma3(tmp_path, layers=1))
    assert {name: spec.hf_key for name, spec in parameter_specs(config).items()} == {
        "embed": "model.embed_tokens.weight",
        "layers.0.attn.q": "model.layers.0.self_attn.q_proj.weight",
        "layers.0.attn.k": "model.layers.0.self_attn.k_proj.weight",
        "layers.0.attn.v": "model.layers.0.self_attn.v_proj.weight",
        "layers.0.attn.o": "model.layers.0.self_attn.o_proj.weight",
        "layers.0.attn.q_norm": "model.layers.0.self_attn.q_norm.weight",
        "layers.0.attn.k_norm": "model.layers.0.self_attn.k_norm.weight",
        "layers.0.mlp.gate": "model.layers.0.mlp.gate_proj.weight",
        "layers.0.mlp.up": "model.layers.0.mlp.up_proj.weight",
        "layers.0.mlp.down": "model.layers.0.mlp.down_proj.weight",
        "layers.0.input_norm": "model.layers.0.input_layernorm.weight",
        "layers.0.post_attn_norm": "model.layers.0.post_attention_layernorm.weight",
        "layers.0.pre_ffw_norm": "model.layers.0.pre_feedforward_layernorm.weight",
        "layers.0.post_ffw_norm": "model.layers.0.post_feedforward_layernorm.weight",
        "final_norm": "model.norm.weight",
    }
    assert next(iter(parameter_specs(config))) == "embed"


def test_module_path_is_where_transformers_keeps_a_multimodal_models_text(tmp_path: Path) -> None:
    paths = [
        module_path(
            load_config(write_tiny_gemma3(tmp_path / str(n), prefix=prefix)), "layers.3.mlp.up"
        )
        for n, prefix in enumerate(PREFIXES)
    ]
    living = "model.language_model.layers.3.mlp.up_proj"
    assert paths == ["model.layers.3.mlp.up_proj", living, living]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_values_arrive_unchanged(dtype: str, tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path, dtype=dtype)
    stored = load_file(directory / WEIGHTS)["model.layers.2.mlp.up_proj.weight"]
    weights = read_weights(directory, load_config(directory))
    assert weights.stored_dtype("layers.2.mlp.up") == dtype == stored.dtype.name
    read = weights["layers.2.mlp.up"]
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, stored.astype(np.float32))
    as_stored = read_weights(directory, load_config(directory), dtype=None)["layers.2.mlp.up"]
    assert as_stored.dtype.name == dtype


def test_shards_read_like_one_file(tmp_path: Path) -> None:
    one = write_tiny_gemma3(tmp_path / "one")
    two = write_tiny_gemma3(tmp_path / "two")
    shard(two)
    config = load_config(two)
    assert config == load_config(one)
    whole = dict(read_weights(one, config))
    for name, tensor in read_weights(two, config).items():
        np.testing.assert_array_equal(tensor, whole[name])


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    change(
        directory,
        **{"model.layers.1.mlp.up_proj.weight": None, "model.layers.7.extra": np.zeros(3)},
    )
    with pytest.raises(UserError, match="do not fit") as refused:
        read_weights(directory, load_config(directory))
    assert "missing: model.layers.1.mlp.up_proj.weight" in refused.value.message
    assert "unexpected: model.layers.7.extra" in refused.value.message


def test_adapter_tensors_left_in_a_checkpoint_are_unexpected(tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    change(directory, **{"model.layers.0.self_attn.q_proj.lora_A.weight": np.zeros((2, 64))})
    with pytest.raises(UserError, match="lora_A"):
        read_weights(directory, load_config(directory))


def test_towers_of_a_text_model_are_unexpected(tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    change(directory, **{"vision_tower.x": np.zeros(3)})
    with pytest.raises(UserError, match=r"unexpected: vision_tower\.x"):
        read_weights(directory, load_config(directory))


def test_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    change(directory, **{"model.norm.weight": np.zeros(63, np.float32)})
    with pytest.raises(UserError, match=r"model\.norm\.weight is float32 \[63\], not \[64\]"):
        read_weights(directory, load_config(directory))


def test_quantized_tensors_are_refused(tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    change(directory, **{"model.layers.0.mlp.up_proj.weight": np.zeros((128, 64), np.int8)})
    with pytest.raises(UserError, match=r"up_proj\.weight is I8 \[128, 64\]"):
        read_weights(directory, load_config(directory))


@pytest.mark.parametrize("head", ["lm_head.weight", "language_model.lm_head.weight"])
def test_head_must_be_the_embedding(head: str, tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    embedding = load_file(directory / WEIGHTS)["model.embed_tokens.weight"]
    change(directory, **{head: embedding.copy()})
    config = load_config(directory)
    assert "embed" in read_weights(directory, config)
    embedding[-1, -1] += 1
    change(directory, **{head: embedding})
    with pytest.raises(UserError, match="differs from the embedding"):
        read_weights(directory, config)


def test_overflow_of_a_float16_checkpoint_is_named(tmp_path: Path) -> None:
    """G14: Gemma saved in float16 holds infinities."""
    directory = write_tiny_gemma3(tmp_path, dtype="float16")
    change(directory, **{"model.norm.weight": np.full(64, np.inf, np.float16)})
    weights = read_weights(directory, load_config(directory))
    with pytest.raises(UserError, match=r"model\.norm\.weight holds numbers that are not finite"):
        weights["final_norm"]


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_damaged_file_is_named(keep: int, tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    content = (directory / WEIGHTS).read_bytes()
    (directory / WEIGHTS).write_bytes(content[:keep])
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read") as refused:
        load_config(directory)
    assert "get it again" in str(refused.value.hint)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors", ".."]
)
def test_index_that_leaves_the_directory_is_refused(name: str, tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path / "model")
    weight_map = shard(directory)
    save_file(
        load_file(directory / weight_map["model.norm.weight"]), tmp_path / "outside.safetensors"
    )
    write_index(directory, weight_map | {"model.norm.weight": name})
    with pytest.raises(UserError, match="not a safetensors file beside it"):
        TensorFiles(directory)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    weight_map = shard(directory)
    first, second = sorted(set(weight_map.values()))
    other = second if weight_map["model.norm.weight"] == first else first
    write_index(directory, weight_map | {"model.norm.weight": other})
    with pytest.raises(UserError, match=r"disagree about model\.norm\.weight"):
        TensorFiles(directory)
    (directory / first).unlink()
    with pytest.raises(UserError, match=f"{first} is missing"):
        TensorFiles(directory)


@pytest.mark.parametrize("weight_map", [None, {}, ["x"]])
def test_index_without_a_map_is_refused(weight_map: Any, tmp_path: Path) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(UserError, match="no `weight_map`"):
        TensorFiles(tmp_path)


def test_one_file_and_an_index_together_are_refused(tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    write_index(directory, {"a": WEIGHTS})
    with pytest.raises(UserError, match="holds both"):
        TensorFiles(directory)


def test_pickles_are_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UserError, match=r"no model\.safetensors") as refused:
        TensorFiles(tmp_path)
    assert "save_pretrained" in str(refused.value.hint)


def some_tensors(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"a": (7, 3), "b": (5,), "c": (2, 3, 4), "d": ()}
    return {key: rng.standard_normal(shape).astype(dtype) for key, shape in shapes.items()}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_written_weights_are_read_by_safetensors(dtype: Any, tmp_path: Path) -> None:
    tensors = some_tensors(dtype)
    assert write_weights(tmp_path, tensors.items()) == [tmp_path / WEIGHTS]
    read = load_file(tmp_path / WEIGHTS)
    assert list(map(str, read)) == sorted(tensors)
    for key, tensor in tensors.items():
        assert (read[key].dtype, read[key].shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(read[key], tensor)
    header_length = int.from_bytes((tmp_path / WEIGHTS).read_bytes()[:8], "little")
    header = json.loads((tmp_path / WEIGHTS).read_bytes()[8 : 8 + header_length])
    assert header["__metadata__"] == {"format": "pt"}  # transformers refuses a file without it


def test_columns_and_views_are_written_in_order(tmp_path: Path) -> None:
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_weights(tmp_path, [("t", matrix.T), ("s", matrix[:, ::2])])
    read = load_file(tmp_path / WEIGHTS)
    np.testing.assert_array_equal(read["t"], matrix.T)
    np.testing.assert_array_equal(read["s"], matrix[:, ::2])


def test_shards_are_written_with_an_index(tmp_path: Path) -> None:
    tensors = some_tensors()  # 84, 20, 96 and 4 bytes
    write_weights(tmp_path, tensors.items(), max_shard_bytes=104)
    index = json.loads((tmp_path / INDEX).read_text())
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert index == {
        "metadata": {"total_size": 204},
        "weight_map": {"a": first, "b": first, "c": second, "d": second},
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == [first, second, INDEX]
    files = TensorFiles(tmp_path)
    for key, tensor in tensors.items():
        np.testing.assert_array_equal(files.read(key), tensor)


def test_header_room_is_never_overrun(tmp_path: Path) -> None:
    """More tensors than one header has room for go to further shards."""
    count = 5000
    write_weights(tmp_path, ((f"layers.{n}.weight", np.float32([n])) for n in range(count)))
    files = TensorFiles(tmp_path)
    assert len(list(files)) == count
    assert files.read("layers.4999.weight") == [4999]
    assert len(list(tmp_path.glob("*.safetensors"))) > 1


def test_failure_leaves_no_file(tmp_path: Path) -> None:
    def breaks() -> Iterator[tuple[str, np.ndarray]]:
        yield from some_tensors().items()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_weights(tmp_path, breaks(), max_shard_bytes=100)
    assert list(tmp_path.iterdir()) == []


def test_existing_weights_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    write_weights(tmp_path, some_tensors().items())
    with pytest.raises(UserError, match=r"already holds model\.safetensors"):
        write_weights(tmp_path, some_tensors().items(), max_shard_bytes=100)


def test_a_key_is_written_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a is written twice"):
        write_weights(
            tmp_path, [*some_tensors().items(), ("a", np.float32([1]))], max_shard_bytes=9
        )
    assert list(tmp_path.iterdir()) == []


def test_reading_and_writing_hold_one_tensor_at_a_time(tmp_path: Path) -> None:
    megabyte = 2**20
    out = tmp_path / "out"
    out.mkdir()
    directory = write_tiny_gemma3(tmp_path / "model", layers=24, hidden=256, intermediate=1024)
    config = load_config(directory)
    specs = parameter_specs(config)
    largest = 1024 * 256 * 4
    total = sum(math.prod(spec.shape) * 4 for spec in specs.values())
    assert total > 60 * megabyte
    tracemalloc.start()
    try:
        weights = read_weights(directory, config)
        write_weights(out, ((specs[name].hf_key, tensor) for name, tensor in weights.items()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * largest
    assert (out / WEIGHTS).stat().st_size > total


def test_config_of_another_size_does_not_fit(tmp_path: Path) -> None:
    directory = write_tiny_gemma3(tmp_path)
    config = dataclasses.replace(load_config(directory), head_dim=32)
    with pytest.raises(UserError, match=r"self_attn\.q_proj\.weight is float32"):
        read_weights(directory, config)
