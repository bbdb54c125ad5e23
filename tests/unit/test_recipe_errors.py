"""What a user reads when a recipe is wrong, word for word."""

from __future__ import annotations

import pytest

from tunesmith.errors import UserError
from tunesmith.recipe.load import parse_recipe

GOOD = """\
name: mine
model:
  id: google/gemma-3-270m
data:
  train:
    files: [rows.jsonl]
    format: chat
train:
  learning_rate: 1e-4
"""
DESCRIBED = "`tunesmith recipes schema` describes every key."


def error(old: str, new: str, *overrides: str) -> UserError:
    assert old in GOOD
    with pytest.raises(UserError) as raised:
        parse_recipe(GOOD.replace(old, new), "my.yaml", overrides)
    return raised.value


def test_the_recipe_that_the_others_break_is_good() -> None:
    assert parse_recipe(GOOD, "my.yaml").train.learning_rate == 1e-4


VALUES = {
    "unknown key, the nearest named, and not told as missing too": (
        ("learning_rate", "lerning_rate"),
        "my.yaml:9: train.lerning_rate: no such key; did you mean `learning_rate`?",
    ),
    "key of another section": (
        ("name: mine", "name: mine\nmicro_batch_size: 3"),
        "my.yaml:2: micro_batch_size: no such key here; did you mean `train.micro_batch_size`?",
    ),
    "key that is like none": (
        ("name: mine", "name: mine\nzzz: 3"),
        "my.yaml:2: zzz: no such key; a recipe has `name`, `description`, `engine`, `model`, "
        "`data`, `train`, `lora`, `parallel`, `eval`, `run`, `cloud`",
    ),
    "missing key: the line of its section": (
        ("  learning_rate: 1e-4", "  epochs: 2"),
        "my.yaml:8: train.learning_rate: required, and missing",
    ),
    "missing section": (
        ("model:\n  id: google/gemma-3-270m\n", ""),
        "my.yaml: model: required, and missing",
    ),
    "section with nothing in it": (
        ("  id: google/gemma-3-270m\n", ""),
        "my.yaml:2: model: expected keys and values under it, given nothing; add some or remove "
        "the line",
    ),
    "space after the colon missing, alone in its section": (
        ("learning_rate: 1e-4", "learning_rate:1e-4"),
        "my.yaml:8: train: expected keys and values under it, given the text "
        "'learning_rate:1e-4'; a space is missing after `learning_rate:`",
    ),
    "text for a number": (
        ("1e-4", "fast"),
        "my.yaml:9: train.learning_rate: expected a number, given the text 'fast'",
    ),
    "number in quotes": (
        ("1e-4", "'1e-4'"),
        "my.yaml:9: train.learning_rate: expected a number, given the text '1e-4'; remove the "
        "quotes",
    ),
    "out of range": (
        ("1e-4", "-1"),
        "my.yaml:9: train.learning_rate: expected a number above 0, given -1",
    ),
    "infinite": (
        ("1e-4", ".inf"),
        "my.yaml:9: train.learning_rate: expected a finite number, given inf",
    ),
    "fraction for a whole number": (
        ("1e-4", "1e-4\n  batch_size: 2.5"),
        "my.yaml:10: train.batch_size: expected a whole number, given 2.5",
    ),
    "YAML 1.1's yes is a text": (
        ("1e-4", "1e-4\nrun:\n  use_best: yes"),
        "my.yaml:11: run.use_best: expected true or false, given the text 'yes'",
    ),
    "choice": (
        ("format: chat", "format: chats"),
        "my.yaml:7: data.train.format: expected one of text, prompt_completion, chat, template; "
        "given the text 'chats'; did you mean chat?",
    ),
    "fp16, G14": (
        ("1e-4", "1e-4\n  compute_dtype: fp16"),
        "my.yaml:10: train.compute_dtype: Gemma's activations exceed float16's range and turn into "
        "NaN; use bfloat16 or float32",
    ),
    "one file not in a list": (
        ("[rows.jsonl]", "rows.jsonl"),
        "my.yaml:6: data.train.files: expected a list, given the text 'rows.jsonl'; write "
        "[rows.jsonl]",
    ),
    "item of a list": (
        ("[rows.jsonl]", "\n    - a.jsonl\n    - 5"),
        "my.yaml:8: data.train.files[1]: expected a text, given 5; put it in quotes",
    ),
    "no files": (
        ("[rows.jsonl]", "[]"),
        "my.yaml:6: data.train.files: expected at least 1 item, given an empty list",
    ),
    "template placeholder without quotes": (
        ("chat", "template\n    template:\n      user: {question}\n      assistant: '{answer}'"),
        "my.yaml:9: data.train.template.user: expected a text, given keys and values; a text that "
        "starts with { needs quotes",
    ),
    "format without its template": (
        ("chat", "template"),
        "my.yaml:7: data.train.format: `template` and `format: template` go together: set both or "
        "neither",
    ),
    "name": (
        ("mine", "My Recipe"),
        "my.yaml:1: name: expected lower-case letters, digits and hyphens, 40 at most, no hyphen "
        "at either end; given the text 'My Recipe'",
    ),
    "written twice": (
        ("  id: google/gemma-3-270m", "  id: google/gemma-3-270m\n  id: other"),
        "my.yaml:4: model.id: written twice, first on line 3; keep one",
    ),
    "rule that binds two sections": (
        ("1e-4", "1e-4\n  method: lora"),
        "my.yaml:10: train.method: `lora` and `train.method: lora` go together: set both or "
        "neither",
    ),
}


@pytest.mark.parametrize(("edit", "message"), VALUES.values(), ids=VALUES.keys())
def test_wrong_value(edit: tuple[str, str], message: str) -> None:
    raised = error(*edit)
    assert raised.message == message
    assert raised.hint == DESCRIBED
    assert raised.exit_code == 2


SYNTAX = {
    "tab": (
        ("  id", "\tid"),
        "my.yaml:3: a tab is used to indent\n  YAML indents with spaces alone; replace the tab.",
    ),
    "space after the colon missing": (
        ("learning_rate: 1e-4", "learning_rate:1e-4\n  epochs: 3"),
        "my.yaml:10: a space is missing after `learning_rate:` on line 9\n"
        "  Write `learning_rate: VALUE`.",
    ),
    "bracket not closed": (
        ("[rows.jsonl]", "[rows.jsonl"),
        "my.yaml:6: a quote or bracket that opens here is not closed\n  Close it.",
    ),
    "quote not closed": (
        ("mine", "'mine"),
        "my.yaml:1: a quote or bracket that opens here is not closed\n  Close it.",
    ),
    "colon in a text": (
        ("mine", "a: b"),
        "my.yaml:1: a colon where no key can stand\n  Indent the line like its neighbours, or put "
        "quotes around a text that holds `: `.",
    ),
    "character with a meaning": (
        ("mine", "@mine"),
        "my.yaml:1: the value starts with `@`, which has a meaning of its own in YAML\n"
        "  Put the whole value in double quotes.",
    ),
    "alias": (
        ("  id: google/gemma-3-270m", "  id: *a"),
        "my.yaml:3: aliases (`*a`) are not read in recipes\n  Write the value again, or put the "
        "text in quotes if the * belongs to it.",
    ),
    "tag": (
        ("mine", "!!python/name:os.system a"),
        "my.yaml:1: tags (`tag:yaml.org,2002:python/name:os.system`) are not read in recipes\n"
        "  Put the text in quotes if the ! belongs to it.",
    ),
    "two documents": (
        ("name", "---\nname: x\n---\nname"),
        "my.yaml:3: a second document starts here (`---`)\n  A recipe is one document; keep each "
        "recipe in a file of its own.",
    ),
}


@pytest.mark.parametrize(("edit", "message"), SYNTAX.values(), ids=SYNTAX.keys())
def test_not_yaml(edit: tuple[str, str], message: str) -> None:
    assert str(error(*edit)) == message


def test_all_errors_at_once_by_line_and_flags_last() -> None:
    raised = error(
        "  learning_rate: 1e-4\n",
        "  learning_rate: fast\n  epochs: 0\n  epochs: 1\nlora:\n  r: x\n",
        "eval.batch_size=-1",
        "run.foldr=x",
    )
    assert raised.message == (
        "my.yaml: 6 things are wrong:\n"
        "  my.yaml:9: train.learning_rate: expected a number, given the text 'fast'\n"
        "  my.yaml:10: train.epochs: expected a number above 0, given 0\n"
        "  my.yaml:11: train.epochs: written twice, first on line 10; keep one\n"
        "  my.yaml:13: lora.r: expected a whole number, given the text 'x'\n"
        "  --set eval.batch_size: expected a number above 0, given -1\n"
        "  --set run.foldr: no such key; `run` has `dir`, `export`, `export_dtype`, `use_best`, "
        "`max_logit_gap`, `tensorboard`, `push_to_hub`, `hub_private`"
    )


def test_all_broken_rules_at_once() -> None:
    raised = error(
        "1e-4\n",
        "1e-4\n  batch_size: 8\n  micro_batch_size: 3\nlora: {r: 8}\n"
        "eval:\n  every_steps: 3\n  text_to_sql: {}\n",
    )
    assert raised.message == (
        "my.yaml: 4 things are wrong:\n"
        "  my.yaml:10: train.batch_size: 8 is not a multiple of `train.micro_batch_size` 3\n"
        "  my.yaml:12: lora: `lora` and `train.method: lora` go together: set both or neither\n"
        "  my.yaml:14: eval.every_steps: measures on rows: give `data.eval` or `data.holdout`\n"
        "  my.yaml:15: eval.text_to_sql: measures on rows: give `data.eval` or `data.holdout`"
    )


def test_options_of_rows_that_would_have_no_effect_are_refused() -> None:
    raised = error("chat", "chat\n    separator: x\n    pick: random")
    assert raised.message == (
        "my.yaml: 2 things are wrong:\n"
        "  my.yaml:8: data.train.separator: `separator` splits plain text: it needs "
        "`format: text`\n"
        "  my.yaml:9: data.train.pick: `pick: random` says which rows `limit` keeps: set `limit` "
        "too"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "train.learning_rate",
            "--set train.learning_rate: has no value; write --set train.learning_rate=1e-4",
        ),
        ("a..b=1", "--set a..b: is not a path of keys; write --set train.learning_rate=1e-4"),
        (
            "train.lerning_rate=1",
            "--set train.lerning_rate: no such key; did you mean `learning_rate`?",
        ),
        ("trian.epochs=1", "--set trian.epochs: trian: no such key; did you mean `train`?"),
        (
            "train.learning_rate=fast",
            "--set train.learning_rate: expected a number, given the text 'fast'",
        ),
        (
            "train={learning_rate: fast}",
            "--set train: train.learning_rate: expected a number, given the text 'fast'",
        ),
        (
            "data.train.files[3]=x",
            "--set data.train.files[3]: `data.train.files` is a list of 1, counted from 0; it has "
            "no `3`",
        ),
        ("name.x=1", "--set name.x: `name` is a value and has no parts"),
        (
            "lora.r=8",
            "--set lora.r: lora: `lora` and `train.method: lora` go together: set both or neither",
        ),
    ],
)
def test_wrong_override(override: str, message: str) -> None:
    assert error("", "", override).message == message


def test_a_section_written_in_the_file_keeps_its_line_beside_an_override() -> None:
    raised = error("1e-4", "fast", "train.epochs=2")
    assert raised.message == (
        "my.yaml:9: train.learning_rate: expected a number, given the text 'fast'"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "my.yaml: is empty"),
        ("# nothing\n", "my.yaml: is empty"),
        ("- a\n", "my.yaml: a recipe is keys and values, and this is a list"),
        ("hello\n", "my.yaml: a recipe is keys and values, and this is the text 'hello'"),
        ("a: " + "[" * 30 + "]" * 30, "my.yaml:1: nested more than 20 levels deep; no recipe is"),
    ],
)
def test_not_a_recipe(text: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_recipe(text, "my.yaml")
    assert raised.value.message == message


def test_half_a_surrogate_pair_is_refused_as_no_file_can_hold_it() -> None:
    assert error("mine", '"a\\ud800"').message == (
        "my.yaml:1: '\\ud800' is half of a surrogate pair, which is no character"
    )


def test_aliases_cannot_grow_a_recipe() -> None:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n"
    with pytest.raises(UserError, match=r"my.yaml:2: aliases \(`\*a`\)"):
        parse_recipe(bomb, "my.yaml")


def test_too_long() -> None:
    with pytest.raises(UserError, match=r"my.yaml: 262,145 characters are too many"):
        parse_recipe("#" * (256 * 1024 + 1), "my.yaml")
