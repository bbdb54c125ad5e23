"""The tokenizer inside a GGUF file → tokenizer.json and the small files beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tunesmith.errors import UserError
from tunesmith.models.gguf_file import GgufFile

# `tokenizer.ggml.token_type`, as in SentencePiece.
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4


def write_tokenizer(gguf: GgufFile, out_dir: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json.

    A chat template is written if the GGUF has one; a base model has none.

    Raises:
        UserError: the file has no SentencePiece vocabulary.
    """
    metadata = gguf.metadata
    kind = metadata.get("tokenizer.ggml.model")
    names = ("tokens", "scores", "token_type")
    missing = [f"tokenizer.ggml.{n}" for n in names if f"tokenizer.ggml.{n}" not in metadata]
    if kind != "llama" or missing:
        raise UserError(
            f"{gguf.path} has no Gemma tokenizer: tokenizer.ggml.model is {kind!r}"
            + (f", {', '.join(missing)} missing" if missing else "")
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    scores: list[float] = metadata["tokenizer.ggml.scores"].tolist()
    types: list[int] = metadata["tokenizer.ggml.token_type"].tolist()
    if not len(tokens) == len(scores) == len(types) == len(set(tokens)):
        raise UserError(f"{gguf.path}: the vocabulary repeats tokens or lacks scores or types")
    special = {
        role: tokens[metadata.get(f"tokenizer.ggml.{key}_token_id", default)]
        for role, key, default in (
            ("pad_token", "padding", 0),
            ("eos_token", "eos", 1),
            ("bos_token", "bos", 2),
            ("unk_token", "unknown", 3),
        )
    }
    tokenizer = tokenizer_json(tokens, scores, types, bos=special["bos_token"])
    _write(out_dir / "tokenizer.json", tokenizer)
    _write(out_dir / "special_tokens_map.json", special)
    settings = {
        "tokenizer_class": "GemmaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**30,  # transformers' way to say that there is no limit
    }
    _write(out_dir / "tokenizer_config.json", settings | special)
    template = metadata.get("tokenizer.chat_template")
    if template:
        (out_dir / "chat_template.jinja").write_text(template, encoding="utf-8")


def tokenizer_json(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], *, bos: str
) -> dict[str, Any]:
    """Gemma's tokenizer in the format of the `tokenizers` library.

    Control tokens (`<bos>`, `<start_of_turn>`) and user-defined ones (runs of newlines and tabs,
    HTML tags) are cut out of the text before BPE sees it, as SentencePiece does. Runs of spaces are
    user-defined too, but by the time they can be seen they are runs of "▁", so BPE makes them.
    """
    tokens = [
        "▁" * len(token) if kind == _USER_DEFINED and not token.strip(" ") else token
        for token, kind in zip(tokens, types, strict=True)  # llama.cpp writes these with spaces
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, types),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": _begin_with(bos, tokens.index(bos)),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": merges(tokens, scores, types),
        },
    }


def merges(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]
) -> list[tuple[str, str]]:
    """The BPE merges that a SentencePiece vocabulary implies, first the ones made first.

    SentencePiece stores pieces with scores instead of merges and always joins the neighbours that
    give the best-scored piece. So each way to cut a piece into two pieces is a merge with the rank
    of the piece's score; of one piece's cuts the one with the longer left part comes first.
    User-defined pieces come before all others: SentencePiece never cuts them.
    """
    user_defined = [index for index, kind in enumerate(types) if kind == _USER_DEFINED]
    normal = [index for index, kind in enumerate(types) if kind == _NORMAL]
    ranked = user_defined + sorted(normal, key=lambda index: -scores[index])
    pieces = {tokens[index] for index in ranked}
    return [
        (piece[:cut], piece[cut:])
        for piece in (tokens[index] for index in ranked)
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]


def _added_tokens(tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED) and token.strip("▁")
    ]


def _begin_with(bos: str, bos_id: int) -> dict[str, Any]:
    """A post-processor that puts BOS before a text, and before each of two."""
    single, second = (
        [
            {"SpecialToken": {"id": bos, "type_id": type_id}},
            {"Sequence": {"id": name, "type_id": type_id}},
        ]
        for type_id, name in enumerate("AB")
    )
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single + second,
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")
