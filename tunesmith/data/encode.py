"""From examples to token ids with targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunesmith.data.bad_rows import BadRow
from tunesmith.data.formats import Example, Segment
from tunesmith.data.tokenizer import Tokenizer
from tunesmith.data.types import Encoded

if TYPE_CHECKING:
    import tokenizers


def encode_examples(
    examples: Sequence[Example], tokenizer: Tokenizer
) -> Iterator[Encoded | BadRow]:
    """Tokenises examples, all cores at work.

    Every example starts with BOS, which is never a target. It ends with EOS, as a target, unless a
    chat template has written its end. Targets are all tokens of the examples' target spans.

    Args:
        examples: a chunk of them; some MB of text keep the cores busy.
        tokenizer: the model's.

    Yields:
        Each example's tokens, in order; a BadRow for a conversation in which a token lies across
        the edge of an answer, so that the prompt alone would have other tokens.
    """
    segments = [segment for example in examples for segment in example.segments]
    encoded = _encode_segments(segments, tokenizer)
    begin = _Tokens(np.array([tokenizer.bos_id], np.int32), np.zeros(1, bool))
    end = _Tokens(np.array([tokenizer.eos_id], np.int32), np.ones(1, bool))
    for example in examples:
        parts = [begin, *(next(encoded) for _ in example.segments), *[end] * example.ends]
        if all(part.exact for part in parts):
            ids = np.concatenate([part.ids for part in parts])
            yield Encoded(ids, np.concatenate([part.target for part in parts]))
        else:
            detail = (
                "a token lies across the edge of an answer, so the prompt alone has other tokens"
            )
            yield BadRow(example.row.where, "token across an answer's edge", detail)


def prompt_of(encoded: Encoded) -> np.ndarray:
    """What the model is given to make the last answer: int32 [T], all before the last targets."""
    targets = np.flatnonzero(encoded.target)
    gaps = np.flatnonzero(np.diff(targets) > 1)
    first = targets[gaps[-1] + 1] if len(gaps) else targets[0]
    return encoded.ids[:first]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Tokens of one segment; `exact` says that no token lies across the edge of a target."""

    ids: np.ndarray
    target: np.ndarray
    exact: bool = True


def _encode_segments(segments: Sequence[Segment], tokenizer: Tokenizer) -> Iterator[_Tokens]:
    """Tokens of each segment, in order; only those that are partly targets need slow offsets."""
    whole = [segment.text for segment in segments if _is_uniform(segment)]
    mixed = [segment.text for segment in segments if not _is_uniform(segment)]
    whole_ids = iter(tokenizer.encode_batch(whole))
    encodings = iter(tokenizer.encode_with_offsets(mixed))
    for segment in segments:
        if _is_uniform(segment):
            ids = next(whole_ids)
            yield _Tokens(ids, np.full(len(ids), bool(segment.targets)))
        else:
            yield _with_targets(next(encodings), segment)


def _is_uniform(segment: Segment) -> bool:
    return segment.targets in ((), ((0, len(segment.text)),))


def _with_targets(encoding: tokenizers.Encoding, segment: Segment) -> _Tokens:
    """Marks the tokens of the segment's target spans.

    If no token lies across an edge, the text before it has the same tokens alone: byte pair merges
    never come undone, and those left of the edge do not depend on what is right of it.
    """
    ids = np.array(encoding.ids, np.int32)
    target = np.zeros(len(ids), bool)
    exact = True
    for begin, end in segment.targets:
        first, last = encoding.char_to_token(begin), encoding.char_to_token(end - 1)
        assert first is not None  # every character is in some token
        assert last is not None
        edges = (encoding.token_to_chars(first), encoding.token_to_chars(last))
        exact &= edges[0] is not None and edges[0][0] == begin
        exact &= edges[1] is not None and edges[1][1] == end
        target[first : last + 1] = True
    return _Tokens(ids, target, exact)
