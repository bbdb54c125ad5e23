"""What a run exports, as transformers and PEFT read it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.parity.test_jax_gemma3 import transformers_model
from tests.tiny import write_tiny_gemma3
from tests.tiny_run import (
    read_lines,
    read_summary,
    sentences,
    tunesmith,
    write_lines,
    write_recipe,
)
from tunesmith.prepare import load_run, prepare_run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _proof_by_transformers_too() -> Iterator[None]:
    """Undoes the end-to-end tests' patch, which a process that ran some of them still has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunesmith.export.find_spec", importlib.util.find_spec)
        yield


def chats(count: int, seed: int) -> list[dict[str, Any]]:
    texts = iter(sentences(2 * count, seed=seed, longest=6))
    return [
        {
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        }
        for question, answer in zip(texts, texts, strict=True)
    ]


def train_chat(folder: Path, model_dir: Path, **sections: Any) -> Path:
    """A finished run on eight conversations, measured on four others."""
    folder.mkdir()
    write_lines(folder / "train.jsonl", chats(8, seed=1))
    write_lines(folder / "eval.jsonl", chats(4, seed=2))
    data = {
        "train": {"files": ["train.jsonl"], "format": "chat"},
        "eval": {"files": ["eval.jsonl"], "format": "chat"},
        "max_length": 64,
    }
    assert tunesmith("train", write_recipe(folder, model_dir, data=data, **sections)) == 0
    return folder / "run"


def rows_loss(model: Any, export: Path, file: Path) -> float:
    """Loss per target token by transformers alone: its tokenizer, its template, its model."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    total, count = 0.0, 0
    for line in file.read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        ids = tokenizer.apply_chat_template(messages, return_dict=False)
        prompt = tokenizer.apply_chat_template(
            messages[:-1], add_generation_prompt=True, return_dict=False
        )
        end = len(ids) - 1 - ids[::-1].index(106)  # <end_of_turn> of the answer, also a target
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(ids)[None]).logits[0, len(prompt) - 1 : end]
        wanted = torch.tensor(ids[len(prompt) : end + 1])
        total += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum").item()
        count += len(wanted)
    return total / count


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A base model, and a run that trained all its weights."""
    folder = tmp_path_factory.mktemp("full")
    base = write_tiny_gemma3(folder / "base")
    return base, train_chat(folder / "rows", base)


def test_full_export_is_the_base_model_with_other_weights(full: tuple[Path, Path]) -> None:
    """G31, G33, G4: keys, shapes, types and config as before; the loss is the one evaluated."""
    base, run = full
    export, summary = run / "export", read_summary(run)
    before, after = load_file(base / "model.safetensors"), load_file(export / "model.safetensors")
    assert {key: (a.shape, a.dtype) for key, a in before.items()} == {
        key: (a.shape, a.dtype) for key, a in after.items()
    }
    assert min(float(np.abs(after[key] - before[key]).max()) for key in before) > 1e-3
    config = json.loads((export / "config.json").read_text())
    assert config == json.loads((base / "config.json").read_text())
    assert config["architectures"] == ["Gemma3ForCausalLM"]

    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        export, dtype=torch.float32, output_loading_info=True
    )
    assert {kind: keys for kind, keys in info.items() if keys} == {}
    loss = rows_loss(model.eval(), export, run.parent / "eval.jsonl")
    assert loss == pytest.approx(summary["after"]["loss"], abs=1e-3)
    assert summary["after"]["loss"] < summary["before"]["loss"] - 0.1
    assert summary["export"]["max_logit_gap"] < 1e-3
    proof = json.loads((export / "tunesmith-proof.json").read_text())
    assert set(proof["readers"]) == {"numpy", "transformers"}
    assert all(reader["same_greedy_text"] for reader in proof["readers"].values())


def test_exported_template_gives_the_ids_of_training(full: tuple[Path, Path]) -> None:
    """G4: the folder alone, read by transformers, gives what was trained."""
    _, run = full
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "export")
    data = prepare_run(load_run(run), lambda line: None).data
    for index, row in enumerate(read_lines(run.parent / "train.jsonl")):
        messages = row["messages"]
        ids = tokenizer.apply_chat_template(messages, return_dict=False)
        example = data.train.example(index)
        assert example.ids.tolist() == ids
        prompt = tokenizer.apply_chat_template(
            messages[:1], add_generation_prompt=True, return_dict=False
        )
        assert np.flatnonzero(example.target)[0] == len(prompt)
        assert ids[: len(prompt)] == prompt


def test_merged_multimodal_export_is_whole(tmp_path: Path) -> None:
    """G16, G31, G17: LoRA on the text part; the towers travel, untouched, in bfloat16."""
    base = write_tiny_gemma3(
        tmp_path / "base", prefix="language_model.model.", dtype="bfloat16", rope_scale=8.0
    )
    lora = {"r": 4, "alpha": 8.0}
    run = train_chat(tmp_path / "rows", base, lora=lora)
    before = load_file(base / "model.safetensors")
    after = load_file(run / "export" / "model.safetensors")
    assert {key: (a.shape, a.dtype) for key, a in before.items()} == {
        key: (a.shape, a.dtype) for key, a in after.items()
    }
    changed = {key for key in before if not np.array_equal(before[key], after[key])}
    assert len(changed) == 7 * 7
    assert not [key for key in changed if "layers." not in key or "_proj" not in key]
    config = json.loads((run / "export" / "config.json").read_text())
    assert config == json.loads((base / "config.json").read_text())
    assert config["architectures"] == ["Gemma3ForConditionalGeneration"]
    assert read_summary(run)["export"]["max_logit_gap"] < 0.25  # bfloat16's rounding


def test_exported_adapter_is_pefts(tmp_path: Path) -> None:
    """G32: plain PEFT loads it whole, and it gives the evaluated loss."""
    peft = pytest.importorskip("peft")
    base = write_tiny_gemma3(tmp_path / "base")
    lora = {"r": 4, "alpha": 8.0}
    run = train_chat(tmp_path / "rows", base, lora=lora, run={"export": "adapter"})
    model = transformers_model(base)
    plain = rows_loss(model, run / "export", tmp_path / "rows" / "eval.jsonl")
    summary = read_summary(run)
    assert plain == pytest.approx(summary["before"]["loss"], abs=1e-3)
    model = peft.PeftModel.from_pretrained(model, run / "export").eval()
    stored = load_file(run / "export" / "adapter_model.safetensors")
    assert peft.get_peft_model_state_dict(model).keys() == stored.keys()
    assert len(stored) == 2 * 7 * 7
    tuned = rows_loss(model, run / "export", tmp_path / "rows" / "eval.jsonl")
    assert tuned == pytest.approx(summary["after"]["loss"], abs=1e-3)
    assert tuned < plain - 0.05
