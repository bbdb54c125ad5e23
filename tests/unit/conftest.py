"""What tests of the data path share: a tokenizer, and data prepared in a cache of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.data_recipe import data_recipe
from tests.tiny import write_tiny_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Gemma's kind of tokenizer, tiny, without a chat template."""
    from tunesmith.data.tokenizer import Tokenizer

    directory = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(directory)
    return Tokenizer.load(directory)


@pytest.fixture
def ready(tmp_path: Path, tokenizer: Any) -> Callable[..., Any]:
    """Prepares data of the test's folder; options are those of `data`."""
    from tunesmith.data.dataset import prepare

    def run(**options: Any) -> Any:
        recipe = data_recipe(**{"max_length": 64, **options})
        return prepare(recipe, tokenizer, base_dir=tmp_path, cache_dir=tmp_path / "cache")

    return run
