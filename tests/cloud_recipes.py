"""Recipes for the machines of both tutorials, and changes to them."""

from __future__ import annotations

from typing import Any

from tunesmith.recipe.schema import Recipe

TPU = {"machine": "ct6e-standard-4t", "topology": "2x4", "mode": "standard", "zone": "us-east5-b"}
CLOUDS: dict[str, dict[str, Any]] = {
    "tpu-autopilot": {"machine": "ct6e-standard-1t", "topology": "1x1"},
    "tpu-standard": {"machine": "ct6e-standard-1t", "mode": "standard", "zone": "us-east5-b"},
    "tpu-multihost": TPU,
    "tpu-multislice": TPU | {"slices": 2},
    "gpu-a4": {"machine": "a4-highgpu-8g", "capacity": "reservation", "reservation": "my-res"},
}


def cloud_recipe(target: str, *, batch_size: int = 64, **cloud: Any) -> Recipe:
    """A small recipe for one of `CLOUDS`, its cloud section changed by the keywords."""
    section = {"project": "demo-proj", "region": "us-east5", "bucket": "demo-bucket"}
    section |= CLOUDS[target] | cloud
    gpu = target.startswith("gpu")
    rows = {"files": ["hf://datasets/owner/name"], "format": "text"}
    return Recipe.model_validate(
        {
            "name": "stories",
            "engine": "hf" if gpu else "jax",
            "model": {"id": "google/gemma-3-270m"},
            "data": {"train": rows},
            "train": {"learning_rate": 1e-4, "batch_size": batch_size},
            "parallel": {"fsdp": 8 if gpu else 1, "slices": section.get("slices", 1)},
            "cloud": section,
        }
    )
