"""The memory estimate of the Hugging Face engine, against what torch really holds."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fsdp_on_cpu import finish, start_processes
from tests.tiny import write_tiny_gemma3
from tests.tiny_engine import tiny_recipe
from tests.tiny_gemma4 import write_tiny_gemma4
from tests.tiny_run import tunesmith, write_recipe
from tunesmith.engines.estimate import estimate
from tunesmith.errors import UserError
from tunesmith.models.published import published_config
from tunesmith.recipe.load import load_recipe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("trl")

pytestmark = pytest.mark.parity

LIMIT = 420  # seconds that nothing here takes, unless it hangs


def estimated(recipe: Any, model: Path, count: int = 1) -> Any:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return estimate(recipe, config, device_count=count, say=lambda line: None)


@pytest.mark.parametrize(
    ("sections", "gap"),
    [
        ({"train": {"batch_size": 8}}, 0.001),
        ({"train": {"batch_size": 8, "remat": "layer"}, "lora": {"r": 8}}, 0.001),
    ],
    ids=["full", "lora-remat"],
)
def test_the_peak_is_what_two_processes_really_hold(
    sections: Any, gap: float, tmp_path: Path
) -> None:
    """On the CPU, where the allocator's own events are the measure, with real FSDP2 over gloo."""
    model = write_tiny_gemma3(
        tmp_path / "model",
        hidden=128,
        intermediate=512,
        layers=6,
        vocab=4096,
        heads=4,
        kv_heads=2,
        head_dim=64,
    )
    path = write_recipe(
        tmp_path / "recipe",
        model,
        engine="hf",
        parallel={"fsdp": 2},
        data={"max_length": 256, "packing": True},
        **sections,
    )
    ended = finish(start_processes(2, path, module="tests.peak_of_a_step"), LIMIT)
    real = json.loads(ended[0][0].splitlines()[-1])
    # Here the head folds its tiles in torch, as it does on any CPU: a GPU would not.
    from tunesmith.engines.hf import estimate as on_gpu_or_cpu

    found = on_gpu_or_cpu(load_recipe(path).recipe, model, device_count=2, say=print, triton=False)
    assert found.peak_bytes == pytest.approx(real["peak"], rel=gap)


def test_weights_and_moments_are_counted_to_the_byte(tmp_path: Path) -> None:
    model = write_tiny_gemma4(tmp_path)
    whole = transformers.AutoModelForCausalLM.from_pretrained(model)
    count = sum(parameter.numel() for parameter in whole.parameters())
    full = estimated(tiny_recipe(model, engine="hf"), model)
    assert full.by_kind["parameters"] == 4 * count  # float32 master weights
    steps = 4 * len(list(whole.parameters()))
    assert full.by_kind["optimizer"] == 8 * count + steps
    lora = estimated(
        tiny_recipe(model, engine="hf", lora={"r": 4}, train={"compute_dtype": "bfloat16"}), model
    )
    adapters = 4 * (sum(4 * (m.in_features + m.out_features) for m in _projections(whole)))
    assert lora.by_kind["parameters"] == 2 * count + adapters  # frozen ones in bfloat16
    assert lora.by_kind["optimizer"] == 2 * adapters + 4 * 2 * len(_projections(whole))


def _projections(model: Any) -> list[Any]:
    return [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.endswith("_proj")
    ]


def test_what_saves_memory_is_seen_to(tmp_path: Path) -> None:
    """Recomputing layers, smaller passes and shards each lower the peak; no whole logits are made.

    G34: of this recipe they would take 4 × 256 × 131,072 × 4 bytes.
    """
    vocab = 131_072
    model = write_tiny_gemma3(tmp_path, layers=6, vocab=vocab)
    base = {"batch_size": 4}
    length = {"max_length": 256}

    def peak(count: int = 1, parallel: Any = None, **train: Any) -> int:
        recipe = tiny_recipe(
            model,
            engine="hf",
            data=length,
            train=base | train,
            parallel=parallel or {},
            lora={"r": 4},
        )
        return estimated(recipe, model, count).peak_bytes

    whole = peak()
    assert peak(remat="layer") < whole
    assert peak(micro_batch_size=1) < whole
    assert peak(2, {"fsdp": 2}) < whole
    assert whole < 4 * 256 * vocab * 4


@pytest.mark.parametrize(
    ("name", "billions"),
    [("31B-it", 30.70), ("26B-A4B-it", 25.23), ("E4B-it", 7.46), ("E2B", 4.63)],
)
def test_published_shapes_have_the_published_sizes(name: str, billions: float) -> None:
    config = published_config(f"google/gemma-4-{name}")
    assert config is not None
    fields = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**fields))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count / 1e9 == pytest.approx(billions, abs=0.006)


def test_what_does_not_fit_the_devices_is_refused(tmp_path: Path) -> None:
    model = write_tiny_gemma4(tmp_path)
    recipe = tiny_recipe(model, engine="hf", parallel={"fsdp": 8})
    with pytest.raises(UserError, match=r"parallel\.fsdp 8 does not fit 4 devices"):
        estimated(recipe, model, 4)


def test_plan_says_what_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_gemma4(tmp_path / "model")
    recipe = write_recipe(
        tmp_path / "recipe", model, engine="hf", parallel={"fsdp": 4}, train={"batch_size": 8}
    )
    out = tmp_path / "plan.json"
    assert tunesmith("plan", recipe, "--on", "b200x4", "h100x8", "l4x2", "--json", out) == 0
    text = capsys.readouterr().out
    assert "b200x4 (1 × a4-highgpu-8g): fits, 0.0" in text
    assert "h100x8 (1 × a3-highgpu-8g): fits" in text
    assert "l4x2: refused: parallel.fsdp 4 does not fit 2 devices" in text
    assert text.count("not counted: what CUDA, cuBLAS and NCCL take") == 2
    plan = json.loads(out.read_text())
    assert [(entry["on"], entry["verdict"]) for entry in plan["targets"]] == [
        ("b200x4", "fits"),
        ("h100x8", "fits"),
    ]
    assert plan["targets"][0]["peak_bytes"] > plan["targets"][0]["by_kind"]["parameters"]


@pytest.mark.heavy
def test_the_shipped_31b_recipe_on_eight_b200() -> None:
    """Under five minutes and 2 GB; a prototype with torch's own tracker found 14.85 GiB."""
    config = published_config("google/gemma-4-31B-it")
    assert config is not None
    recipe = load_recipe("text-to-sql-gemma4-31b").recipe
    begun = time.monotonic()
    found = estimate(recipe, config, device_count=8, say=print)
    seconds = time.monotonic() - begun
    host = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(f"peak {found.peak_bytes / 2**30:.2f} GiB, {seconds:.0f} s, {host / 1e9:.2f} GB here")
    for kind, size in found.by_kind.items():
        print(f"  {kind}: {size / 2**30:.2f} GiB")
    assert found.peak_bytes / 2**30 == pytest.approx(14.85, abs=0.3)
    # 32 answers: 50 local layers hold 1,024 tokens × 16 heads of 256, 10 global ones 1,280 × 4 of
    # 512; keys and values, 2 bytes each.
    assert found.cache_bytes == 32 * 2 * 2 * (50 * 1024 * 16 * 256 + 10 * 1280 * 4 * 512)
    assert seconds < 300
    assert host < 2e9
