"""Make the demo's text-to-SQL data: training conversations and held-out single questions.

Same seed, same bytes. Every gold query has been run on its populated database: it returns values,
does not depend on the order in which rows are stored, and gives another result without its
conditions. Training and held-out part share neither schemas nor phrasings.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from tunesmith.demo.phrasings import PHRASINGS
from tunesmith.demo.questions import KINDS, Unsuitable
from tunesmith.demo.schemas_arts import ARTS_AND_LIFE
from tunesmith.demo.schemas_heldout import HELDOUT_DOMAINS
from tunesmith.demo.schemas_trade import TRADE_AND_TRAVEL
from tunesmith.demo.tables import Database, Domain, fill
from tunesmith.errors import UserError
from tunesmith.tasks.sql_sandbox import SqlSandbox
from tunesmith.tasks.sql_text import has_top_level_order
from tunesmith.tasks.text_to_sql import same_result

TRAINING_DOMAINS: tuple[Domain, ...] = ARTS_AND_LIFE + TRADE_AND_TRAVEL

T = TypeVar("T")
Part = Literal["training", "heldout"]
_WHERE = re.compile(r" WHERE (?P<conditions>.*)")  # ends every query that has one
_ARTICLE = re.compile(r"\ba (?=[aeiou](?!ni))")  # "a university" stays
# What a small model takes longest to learn comes twice as often in training.
_TRAINING_KINDS = [*KINDS, "join_filter", "join_aggregate", "group_count", "sorted_list", "not_in"]
_DRAWS = 60  # tries for one question before its kind is given up on this database


@dataclass(frozen=True)
class DemoFiles:
    """The two files of the data set, JSON lines in UTF-8 with sorted keys.

    Attributes:
        train: rows `{"messages": [{"role", "content"}, ...]}`, one database with several questions.
        heldout: rows `{"database", "kind", "question", "schema", "setup", "sql"}`.
    """

    train: Path
    heldout: Path


@dataclass(frozen=True)
class Question:
    """A question about a database and its gold query."""

    database: Database
    kind: str
    text: str
    sql: str


def write_demo_data(
    out_dir: Path,
    *,
    seed: int = 0,
    train_conversations: int = 120,
    turns: int = 6,
    heldout_questions: int = 200,
) -> DemoFiles:
    """Write `train.jsonl` and `heldout.jsonl` into `out_dir`, made if need be.

    Raises:
        UserError: more different questions are asked for than the schemas give.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    files = DemoFiles(out_dir / "train.jsonl", out_dir / "heldout.jsonl")
    _write_lines(files.train, training_rows(seed, train_conversations, turns))
    _write_lines(files.heldout, heldout_rows(seed, heldout_questions))
    return files


def training_rows(seed: int, conversations: int, turns: int) -> Iterator[dict[str, Any]]:
    """Conversations over one database each; no question occurs twice.

    Only a first turn follows the schema directly, as every held-out question does. First turns
    therefore draw their kinds from a deck of their own, so that every kind opens its share.
    """
    rng = random.Random(f"{seed}:training")
    askers = _Deck([_Asker(fill(domain, rng), "training") for domain in TRAINING_DOMAINS], rng)
    openings, followings = _Deck(_TRAINING_KINDS, rng), _Deck(_TRAINING_KINDS, rng)
    for _ in range(conversations):
        asker = askers.deal()
        questions: list[Question] = []
        for turn in range(turns):
            kinds = followings if turn else openings
            questions.append(_first(asker.ask(kinds.deal(), rng) for _ in range(2 * len(KINDS))))
        yield {"messages": _messages(asker.database.schema, questions)}


def heldout_rows(seed: int, questions: int) -> Iterator[dict[str, Any]]:
    """Single questions, kinds and schemas in about equal shares; no question occurs twice."""
    rng = random.Random(f"{seed}:heldout")
    askers = _Deck([_Asker(fill(domain, rng), "heldout") for domain in HELDOUT_DOMAINS], rng)
    kinds = _Deck(list(KINDS), rng)
    for _ in range(questions):
        kind = kinds.deal()
        question = _first(askers.deal().ask(kind, rng) for _ in range(2 * len(HELDOUT_DOMAINS)))
        yield {
            "database": question.database.name,
            "kind": question.kind,
            "question": question.text,
            "schema": question.database.schema,
            "setup": question.database.setup,
            "sql": question.sql,
        }


class _Deck(Generic[T]):
    """Deals its cards in random order, all of them before any comes again."""

    def __init__(self, cards: Sequence[T], rng: random.Random) -> None:
        self._cards = cards
        self._rng = rng
        self._left: list[T] = []

    def deal(self) -> T:
        if not self._left:
            self._left = self._rng.sample(self._cards, len(self._cards))
        return self._left.pop()


class _Asker:
    """Asks questions about one database and never the same one twice."""

    def __init__(self, database: Database, part: Part) -> None:
        self.database = database
        self._part = part
        self._asked: set[str] = set()
        self._templates: dict[str, _Deck[str]] = {}

    def ask(self, kind: str, rng: random.Random) -> Question | None:
        """A new question of this kind, or None where the database has no more of them."""
        templates = self._templates.setdefault(
            kind, _Deck(getattr(PHRASINGS[kind], self._part), rng)
        )
        for _ in range(_DRAWS):
            try:
                draft = KINDS[kind](self.database, rng)
            except Unsuitable:
                continue
            text = _ARTICLE.sub("an ", templates.deal().format(**draft.slots))
            if text not in self._asked and _is_fair(self.database, draft.sql):
                self._asked.add(text)
                return Question(self.database, kind, text, draft.sql)
        return None


def _first(questions: Iterable[Question | None]) -> Question:
    found = next((question for question in questions if question is not None), None)
    if found is None:
        raise UserError(
            "the demo's schemas do not give that many different questions",
            "Ask for fewer conversations, turns or held-out questions.",
        )
    return found


def _is_fair(database: Database, sql: str) -> bool:
    """Whether the gold query gives values, has one right answer, and needs its conditions."""
    ordered = has_top_level_order(sql)
    with SqlSandbox(database.setup) as sandbox:
        gold = sandbox.query(sql).rows
        if not gold or any(cell is None for row in gold for cell in row):
            return False
        for weaker in _weakened(sql):
            if same_result(gold, sandbox.query(weaker).rows, ordered=ordered):
                return False
    with SqlSandbox(database.setup_reversed) as sandbox:
        return same_result(gold, sandbox.query(sql).rows, ordered=ordered)


def _weakened(sql: str) -> Iterator[str]:
    """The query without its WHERE, and without either of two conditions."""
    match = _WHERE.search(sql)
    if match is None:
        return
    before, conditions = sql[: match.start()], match["conditions"]
    yield before
    if " AND " in conditions and " BETWEEN " not in conditions:
        yield from (f"{before} WHERE {condition}" for condition in conditions.split(" AND "))


def _messages(schema: str, questions: Sequence[Question]) -> list[dict[str, str]]:
    """One conversation; the schema is paid for once, in front of the first question."""
    messages: list[dict[str, str]] = []
    for turn, question in enumerate(questions):
        asked = question.text if turn else f"{schema}\n\n{question.text}"
        messages.append({"role": "user", "content": asked})
        messages.append({"role": "assistant", "content": question.sql})
    return messages


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n")
