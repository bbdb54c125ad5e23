"""A model's tokenizer: the `tokenizers` library on its tokenizer.json, and its special tokens."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tunesmith.data.chat import ChatTemplate, find_template
from tunesmith.errors import UserError

if TYPE_CHECKING:
    import tokenizers

# Tokens that end a turn, in Gemma 3's and Gemma 4's spelling.
_TURN_ENDS = ("<end_of_turn>", "<turn|>")
# Longer texts are tokenised in pieces: the library takes some 50 bytes of memory a character and
# uses one core for one text.
_PIECE_CHARS = 1 << 18
_CHARS_AT_ONCE = 1 << 22
# Places that no token of Gemma's vocabulary lies across: behind a run of newlines, which are added
# tokens and so split off first, and before a single space between words.
_SAFE_CUT = re.compile(r"(?<=\n)(?=[^\n\s])|(?<=\w)(?= \w)")


class Tokenizer:
    """Text to ids and back. Nothing is added unasked: no BOS, no padding, no truncation.

    Attributes:
        bos_id, eos_id, pad_id: begin of text, end of text, padding.
        bos_token, eos_token: the first two as text.
        turn_end_id: what ends a turn of a conversation; None if the vocabulary has no such token.
        stop_ids: tokens at which a generation ends: EOS, the turn end, and those that the model's
            generation_config.json names besides (Gemma 4: `<|tool_response>`).
        stop_tokens: the same as text.
        special_tokens: text → id of all control tokens.
        vocab_size: number of ids.
        fingerprint: changes when anything that changes ids changes.
        chat_template: the model's own, None for base models.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        *,
        bos: str,
        eos: str,
        pad: str,
        stop_ids: Sequence[int] = (),
        fingerprint: str,
    ) -> None:
        library.no_truncation()
        library.no_padding()
        self._library = library
        self.bos_token, self.eos_token = bos, eos
        self.bos_id, self.eos_id, self.pad_id = (self._id_of(token) for token in (bos, eos, pad))
        added = library.get_added_tokens_decoder()
        self.special_tokens = {token.content: id for id, token in added.items() if token.special}
        self.special_tokens |= {bos: self.bos_id, eos: self.eos_id, pad: self.pad_id}
        self._special_lengths = sorted({len(token) for token in self.special_tokens}, reverse=True)
        self._special_start = re.compile(
            "[" + "".join({re.escape(token[0]) for token in self.special_tokens}) + "]"
        )
        turn_end = next((token for token in _TURN_ENDS if token in self.special_tokens), None)
        self.turn_end_id = None if turn_end is None else self.special_tokens[turn_end]
        stops = (self.eos_id, self.turn_end_id, *stop_ids)
        self.stop_ids = tuple(dict.fromkeys(id for id in stops if id is not None))
        self.stop_tokens = tuple(map(self.token, self.stop_ids))
        self.vocab_size = library.get_vocab_size(with_added_tokens=True)
        self._edge_tokens = re.compile("|".join(map(re.escape, (bos, eos, pad))))
        self.fingerprint = fingerprint
        self.chat_template: ChatTemplate | None = None

    @classmethod
    def load(cls, model_dir: str | Path) -> Tokenizer:
        """Reads tokenizer.json and the small files around it.

        Raises:
            UserError: a file is missing or damaged, or names no BOS, EOS or padding token.
        """
        # Set or not, the library uses all cores; unset, it warns after a fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        import tokenizers

        model_dir = Path(model_dir)
        path = model_dir / "tokenizer.json"
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read: {error.strerror}",
                "A model directory needs tokenizer.json; tokenizer.model alone is not enough.",
            ) from error
        try:
            library = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{path}: damaged: {error}", "Fetch the model again.") from error
        names = _token_names(model_dir)
        digest = hashlib.sha256(content + json.dumps(names, sort_keys=True).encode())
        stop_ids = _generation_stops(model_dir, library.get_vocab_size(with_added_tokens=True))
        tokenizer = cls(library, **names, stop_ids=stop_ids, fingerprint=digest.hexdigest())
        tokenizer.chat_template = find_template(
            model_dir, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token
        )
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of a text; control tokens in it are recognised."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, int32 [T]; all cores work on it."""
        pieces = [_cut(text) for text in texts]
        arrays = self._encode_pieces(itertools.chain.from_iterable(pieces))
        ids = [[next(arrays) for _ in of_text] for of_text in pieces]
        return [some[0] if len(some) == 1 else np.concatenate(some) for some in ids]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tokenizers.Encoding]:
        """Encodings that know the characters of each token; slower than `encode_batch`."""
        return self._library.encode_batch(list(texts), add_special_tokens=False)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of ids, control tokens left out unless asked for."""
        return self._library.decode([int(id) for id in ids], skip_special_tokens=skip_special)

    def token(self, id: int) -> str:
        """A token as the vocabulary spells it (`▁` for a space)."""
        return self._library.id_to_token(int(id)) or f"<{id}>"

    def special_token_in(self, text: str) -> str | None:
        """The first control token that the text contains, if any."""
        # There are thousands of them (`<unused0>` …), so they are looked up, not searched for.
        for match in self._special_start.finditer(text):
            at = match.start()
            for length in self._special_lengths:
                if (part := text[at : at + length]) in self.special_tokens:
                    return part
        return None

    def edge_token_in(self, text: str) -> str | None:
        """The first BOS, EOS or padding token that the text contains, if any."""
        match = self._edge_tokens.search(text)
        return match and match[0]

    def _encode_pieces(self, pieces: Iterable[str]) -> Iterator[np.ndarray]:
        """Ids of each piece; so many at once that the library's own objects stay few."""
        for some in _groups(pieces):
            for encoding in self._library.encode_batch_fast(some, add_special_tokens=False):
                yield np.array(encoding.ids, np.int32)

    def _id_of(self, token: str) -> int:
        id = self._library.token_to_id(token)
        if id is None:
            raise UserError(
                f"the tokenizer has no token {token!r}, which its settings name",
                "Check tokenizer_config.json and special_tokens_map.json of the model.",
            )
        return id


def _token_names(model_dir: Path) -> dict[str, str]:
    """Texts of BOS, EOS and padding: as the model's files say, else as Gemma's are called."""
    names = {"bos": "<bos>", "eos": "<eos>", "pad": "<pad>"}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        path = model_dir / file
        if not path.exists():
            continue
        try:
            settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            for name in names:
                value = settings.get(f"{name}_token")
                value = value["content"] if isinstance(value, dict) else value
                names[name] = value or names[name]
        except (ValueError, KeyError, AttributeError) as error:
            raise UserError(f"{path}: damaged: {error}", "Fetch the model again.") from error
    return names


def _generation_stops(model_dir: Path, vocab_size: int) -> list[int]:
    """`eos_token_id` of generation_config.json: one id, a list, or nothing."""
    path = model_dir / "generation_config.json"
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path}: damaged: {error}", "Fetch the model again.") from error
    ids = found if isinstance(found, list) else [] if found is None else [found]
    for id in ids:
        if type(id) is not int or not 0 <= id < vocab_size:
            raise UserError(
                f"{path}: eos_token_id {id!r} is no token of the tokenizer, which has {vocab_size}",
                "The model's files do not belong together; fetch the model again.",
            )
    return ids


def _cut(text: str) -> list[str]:
    """The text in pieces of about _PIECE_CHARS whose tokens are those of the whole."""
    pieces = []
    begin = 0
    while len(text) - begin > _PIECE_CHARS and (
        cut := _SAFE_CUT.search(text, begin + _PIECE_CHARS)
    ):
        pieces.append(text[begin : cut.start()])
        begin = cut.start()
    return [*pieces, text[begin:]]


def _groups(pieces: Iterable[str]) -> Iterator[list[str]]:
    """The pieces in lists of about _CHARS_AT_ONCE."""
    group: list[str] = []
    chars = 0
    for piece in pieces:
        group.append(piece)
        chars += len(piece)
        if chars >= _CHARS_AT_ONCE:
            yield group
            group, chars = [], 0
    if group:
        yield group
