"""SQL as text: cutting an answer at its first statement, and a normal form for exact match."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sqlglot import exp

_TURN_MARKER = re.compile(r"<(?:start_of_turn|end_of_turn|bos|eos|pad|turn\||\|\w+\|?)>")
# Literals and quoted identifiers come before everything that could end a statement inside them.
_TOKEN = re.compile(
    rf"""
    (?P<space>\s+)
  | (?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))
  | (?P<string>'[^']*(?:''[^']*)*')
  | (?P<marker>```|{_TURN_MARKER.pattern})
  | (?P<quoted>"[^"]*(?:""[^"]*)*"|`[^`]*`|\[[^\]\n]*\])
  | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)
  | (?P<word>[^\W\d][\w$]*)
  | (?P<symbol>\|\||<=|>=|<>|!=|==|<<|>>|.)
    """,
    re.VERBOSE | re.DOTALL,
)

_WITH = r'WITH\s+(?:RECURSIVE\s+)?["\w]+\s*(?:\([^)]{0,200}\)\s*)?AS\b'
# Where an answer's statement may begin: on its own line, in a code fence, after "SQL:".
_START = re.compile(
    rf"(?:^[^\S\n]*|(?:```\w*|:)\s*)(?P<sql>SELECT\b|{_WITH})", re.IGNORECASE | re.MULTILINE
)
_START_INLINE = re.compile(rf"\b(?:SELECT\b|{_WITH})")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")
_OTHER_VERBS = re.compile(
    r"\s*(?:ALTER|ANALYZE|ATTACH|BEGIN|CREATE|DELETE|DETACH|DROP|EXPLAIN|INSERT|PRAGMA|REINDEX"
    r"|REPLACE|UPDATE|VACUUM|VALUES)\b"
)

# Words that can begin a line in the middle of a statement, after a complete operand.
# fmt: off
_CONTINUING = frozenset([
    "AND", "AS", "ASC", "BETWEEN", "COLLATE", "CROSS", "DESC", "ELSE", "END", "ESCAPE",
    "EXCEPT", "FILTER", "FROM", "FULL", "GLOB", "GROUP", "HAVING", "IN", "INNER",
    "INTERSECT", "IS", "ISNULL", "JOIN", "LEFT", "LIKE", "LIMIT", "MATCH", "NATURAL", "NOT",
    "NOTNULL", "NULLS", "OFFSET", "ON", "OR", "ORDER", "OUTER", "OVER", "REGEXP", "RIGHT",
    "THEN", "UNION", "USING", "WHEN", "WHERE", "WINDOW",
])
# fmt: on
# Words after which an operand is still to come, whatever the next line begins with.
# fmt: off
_OPEN_ENDED = frozenset([
    "ALL", "AND", "AS", "BETWEEN", "BY", "CASE", "CROSS", "DISTINCT", "ELSE", "ESCAPE",
    "EXCEPT", "EXISTS", "FROM", "FULL", "GLOB", "GROUP", "HAVING", "IN", "INNER",
    "INTERSECT", "IS", "JOIN", "LEFT", "LIKE", "LIMIT", "NATURAL", "NOT", "OFFSET", "ON",
    "OR", "ORDER", "OUTER", "RECURSIVE", "RIGHT", "SELECT", "THEN", "UNION", "USING",
    "WHEN", "WHERE", "WITH",
])
# fmt: on


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def extract_statement(text: str) -> str:
    """The answer cut at its first statement, without its semicolon.

    A model that was not tuned goes on after its answer, or wraps it in a code fence; neither should
    count against it. The statement ends at the first semicolon outside literals, quoted identifiers
    and comments, at a blank line, a turn marker or a closing fence, and at a line that cannot
    go on with it (such as another SELECT, or a new question). Text without a statement is
    cut the same way.
    """
    text = text[_statement_start(text) :]
    return text[: _statement_end(text)].strip()


def has_top_level_order(sql: str) -> bool:
    """Whether the statement itself, not a subquery or window, asks for an order."""
    depth, previous = 0, ""
    for token in _significant(sql):
        word = token.text.upper() if token.kind in ("word", "symbol") else ""
        if depth == 0 and (previous, word) == ("ORDER", "BY"):
            return True
        depth += (word == "(") - (word == ")")
        previous = word
    return False


def first_word(sql: str) -> str:
    """The statement's first word in upper case, comments skipped; "" if it begins otherwise."""
    token = next(_significant(sql), None)
    return token.text.upper() if token is not None and token.kind == "word" else ""


def names(schema: str) -> frozenset[str]:
    """All words and quoted identifiers of a schema text in lower case: what may be a name."""
    return frozenset(
        token.text.strip('"`[]').lower()
        for token in _significant(schema)
        if token.kind in ("word", "quoted")
    )


def normalized(sql: str, known_names: frozenset[str]) -> str:
    """A normal form that equal statements share, whatever their layout and quoting.

    Case of keywords and identifiers, white space, a final semicolon, comments, table aliases,
    result column names, `<>` for `!=`, INNER and ASC do not matter. `"x"` is an identifier if the
    schema has such a name and a string otherwise, as SQLite reads it. What sqlglot cannot parse is
    compared token by token instead.

    Args:
        sql: one statement.
        known_names: `names(schema)` of the database it is about.
    """
    tokens = list(_significant(sql))
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    return _normalized_tree(sql, known_names) or " ".join(
        _normal_token(token, known_names) for token in tokens
    )


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        yield _Token(str(match.lastgroup), match.group(), match.start())


def _significant(text: str) -> Iterator[_Token]:
    return (token for token in _tokens(text) if token.kind not in ("space", "comment"))


def _statement_start(text: str) -> int:
    if _OTHER_VERBS.match(text):
        return 0
    turn_end = _TURN_MARKER.search(text)
    turn = text[: turn_end.start()] if turn_end else text
    if match := _START.search(turn):
        return match.start("sql")
    match = _START_INLINE.search(turn)
    return match.start() if match else 0


def _statement_end(text: str) -> int:
    """Where the statement that the text begins with ends; see `extract_statement`."""
    verb, previous, depth = "", "", 0
    new_line = body_of_with_seen = False
    for token in _tokens(text):
        if token.kind == "comment":
            continue
        if token.kind == "space":
            if previous and _BLANK_LINE.search(token.text):
                return token.start
            new_line = new_line or "\n" in token.text
            continue
        word = token.text.upper()
        if token.kind == "marker" or word in (";", "`"):  # a backtick that opens no identifier
            return token.start
        if verb == "WITH" and word == "SELECT" and depth == 0 and not body_of_with_seen:
            body_of_with_seen = True
        elif new_line and depth <= 0 and _begins_anew(token, previous):
            return token.start
        depth += (word == "(") - (word == ")")
        verb = verb or word
        previous, new_line = word, False
    return len(text)


def _begins_anew(token: _Token, previous: str) -> bool:
    """Whether a line that begins with this token cannot go on with the statement so far.

    Two operands never stand side by side in SQL, so a word that is no joining keyword starts
    something else, unless the line before left its last operator or comma open.
    """
    complete = previous not in _OPEN_ENDED and previous not in (
        "", "(", ",", ".", "+", "-", "/", "%", "=", "==", "<", ">", "<=", ">=", "<>", "!=", "||"
    )  # fmt: skip
    return complete and token.kind == "word" and token.text.upper() not in _CONTINUING


def _normal_token(token: _Token, known_names: frozenset[str]) -> str:
    if token.kind == "quoted":
        name = token.text[1:-1]
        return name.lower() if name.lower() in known_names else f"'{name}'"
    return token.text if token.kind == "string" else token.text.lower()


def _normalized_tree(sql: str, known_names: frozenset[str]) -> str | None:
    """The normal form by way of sqlglot's tree, or None where it is not a query it can parse."""
    import sqlglot
    from sqlglot import errors, exp

    if first_word(sql) not in ("SELECT", "WITH"):
        return None
    try:
        tree = sqlglot.parse_one(sql, read="sqlite")
    except (errors.SqlglotError, RecursionError, ValueError):
        return None
    if not isinstance(tree, exp.Query):
        return None
    for column in list(tree.find_all(exp.Column)):
        name = column.this
        if name.args.get("quoted") and not column.table and name.name.lower() not in known_names:
            column.replace(exp.Literal.string(name.name))
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("this", identifier.name.lower())
        identifier.set("quoted", False)
    for join in tree.find_all(exp.Join):
        if join.kind == "INNER":
            join.set("kind", None)
    for ordered in tree.find_all(exp.Ordered):
        ordered.set("desc", ordered.args.get("desc") or None)
    _drop_table_aliases(tree)
    _drop_result_names(tree)
    return tree.sql(dialect="sqlite", comments=False)


def _drop_table_aliases(tree: exp.Query) -> None:
    """Say `singer.age` for `T1.age`; with a single table, say `age`."""
    from sqlglot import exp

    tables = list(tree.find_all(exp.Table))
    if len({table.name for table in tables}) < len(tables):
        return  # a table joined with itself: its aliases carry meaning
    table_of = {table.alias: table.name for table in tables if table.alias}
    for column in tree.find_all(exp.Column):
        if column.table in table_of:
            column.set("table", exp.to_identifier(table_of[column.table]))
        if len(tables) == 1:
            column.set("table", None)
    for table in tables:
        table.set("alias", None)


def _drop_result_names(tree: exp.Query) -> None:
    """`COUNT(*) AS n` is `COUNT(*)`, unless the statement uses `n`."""
    from sqlglot import exp

    used = {column.name for column in tree.find_all(exp.Column)}
    for expression in list(tree.selects):
        if isinstance(expression, exp.Alias) and expression.alias not in used:
            expression.replace(expression.this)
