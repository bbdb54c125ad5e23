"""Loading by name and by file, overrides, and writing back."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith.errors import UserError
from tunesmith.recipe.catalog import shipped, shipped_names, shipped_text
from tunesmith.recipe.load import diff_recipes, dump_recipe, load_recipe, parse_recipe, yaml_value
from tunesmith.recipe.parse import parse_yaml

RECIPE = """\
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


def parse(*overrides: str, text: str = RECIPE):
    return parse_recipe(text, "my.yaml", overrides)


# Shipped recipes


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_recipe_loads_and_is_named_as_its_file(name: str) -> None:
    loaded = load_recipe(name)
    assert loaded.recipe.name == name
    assert loaded.recipe.description
    assert loaded.path is None
    assert loaded.base_dir == Path.cwd()
    assert loaded.text == shipped_text(name)


def test_the_four_shipped_recipes() -> None:
    assert [name for name, _ in shipped()] == [
        "demo",
        "text-to-sql-gemma3-270m",
        "text-to-sql-gemma4-31b",
        "tinystories-gemma3-270m",
    ]


def test_gpu_recipe_has_the_tutorials_batch() -> None:
    train = load_recipe("text-to-sql-gemma4-31b").recipe.train
    assert train.micro_batch_size is not None
    assert train.batch_size == train.micro_batch_size * 32 * 8


def test_gpu_recipe_prompt_is_the_tutorials_character_by_character() -> None:
    template = load_recipe("text-to-sql-gemma4-31b").recipe.data.train.template
    assert template is not None
    assert template.system == (
        "You are a text to SQL query translator. Users will ask you questions in English and you "
        "will generate a SQL query based on the provided SCHEMA."
    )
    assert template.user == (
        "Given the <USER_QUERY> and the <SCHEMA>, generate the corresponding SQL command to "
        "retrieve the desired data, considering the query's syntax, semantics, and schema "
        "constraints.\n\n<SCHEMA>\n{sql_context}\n</SCHEMA>\n\n<USER_QUERY>\n{sql_prompt}\n"
        "</USER_QUERY>\n"
    )


def test_small_text_to_sql_recipe_takes_files_from_flags() -> None:
    recipe = load_recipe(
        "text-to-sql-gemma3-270m",
        ["data.train.files=[a.jsonl]", "data.eval=null", "data.holdout.fraction=0.05"],
    ).recipe
    assert recipe.data.train.files == ["a.jsonl"]
    assert recipe.data.holdout is not None
    assert recipe.data.holdout.fraction == 0.05


# Files


def test_file_gives_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    loaded = load_recipe(str(file))
    assert (loaded.base_dir, loaded.path, loaded.text) == (tmp_path, file, RECIPE)


def test_bom_and_crlf_file_equals_clean_file(tmp_path: Path) -> None:
    """G25 and G26, for recipes."""
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + RECIPE.replace("\n", "\r\n").encode())
    assert load_recipe(file).recipe == parse()


def test_bad_byte_is_named_with_its_line(tmp_path: Path) -> None:
    """G25, for recipes."""
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"name: mine\ndescription: caf\xe9\n")
    with pytest.raises(UserError, match=r"mine.yaml:2: not UTF-8 text \(byte 27 is 0xe9\)"):
        load_recipe(file)


def test_folder_names_the_recipe_in_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(UserError, match="is a folder, not a recipe") as raised:
        load_recipe(tmp_path)
    assert raised.value.hint == f"Give the file in it: {tmp_path / 'recipe.yaml'}."


def test_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"GGUF\0\0\0")
    with pytest.raises(UserError, match="is a binary file, not a recipe"):
        load_recipe(file)


def test_missing_file_and_unknown_name() -> None:
    with pytest.raises(UserError, match=r"^no/such.yaml: no such file"):
        load_recipe("no/such.yaml")
    with pytest.raises(UserError, match=r"no recipe is called 'demmo', .*; did you mean demo\?"):
        load_recipe("demmo")


def test_path_that_no_file_can_have() -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load_recipe("a\0b")
    with pytest.raises(UserError, match="cannot be read"):
        load_recipe("x" * 5000)


# Overrides


def test_override_value_is_yaml() -> None:
    assert parse("train.learning_rate=3e-5").train.learning_rate == 3e-5
    assert parse("train.max_grad_norm=null").train.max_grad_norm is None
    assert parse("description=no").description == "no"
    assert parse("data.train.files=[a.jsonl, 'b c.jsonl']").data.train.files == [
        "a.jsonl",
        "b c.jsonl",
    ]


def test_override_of_a_list_item_and_one_behind_the_last() -> None:
    assert parse("data.train.files[0]=x").data.train.files == ["x"]
    assert parse("data.train.files.1=x").data.train.files == ["rows.jsonl", "x"]
    assert parse("eval.prompts[0]=Hello").eval.prompts == ["Hello"]


def test_override_of_a_whole_section_and_into_one_that_is_not_there() -> None:
    recipe = parse("train={learning_rate: 1, method: lora}", "lora.r=4")
    assert (recipe.train.learning_rate, recipe.train.method) == (1.0, "lora")
    assert recipe.lora is not None
    assert recipe.lora.r == 4


def test_later_override_wins() -> None:
    assert parse("train.epochs=2", "train.epochs=5").train.epochs == 5


@pytest.mark.parametrize("value", ["---", "...", "<|endoftext|>", "a=b"])
def test_override_with_a_text_that_yaml_or_the_flag_could_mistake(value: str) -> None:
    recipe = parse("data.train.format=text", f"data.train.separator={value}")
    assert recipe.data.train.separator == value


def test_override_leaves_the_text_as_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE)
    assert load_recipe(file, ["train.epochs=2"]).text == RECIPE


# YAML 1.2


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("+.5", 0.5),
        ("5.", 5.0),
        ("-.inf", float("-inf")),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("no", "no"),
        ("on", "on"),
        ("True", True),
        ("~", None),
        ("", None),
        ("2024-01-31", "2024-01-31"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("9" * 30, float("9" * 30)),
        ("'1'", "1"),
        ("|\n  a\n  b\n", "a\nb\n"),
    ],
)
def test_scalars_are_those_of_the_core_schema(written: str, value: object) -> None:
    read = parse_yaml(f"key: {written}", "x").value["key"]
    assert (read, type(read)) == (value, type(value))


# Writing


@pytest.mark.parametrize("name", shipped_names())
def test_dumped_recipe_loads_back_equal(name: str) -> None:
    recipe = load_recipe(name).recipe
    assert parse_recipe(dump_recipe(recipe), "dumped") == recipe


def test_dumped_recipe_holds_every_default() -> None:
    dumped = dump_recipe(parse())
    assert "  max_grad_norm: 1.0\n" in dumped
    assert "    eps: 1e-8\n" in dumped
    assert "lora: null\n" in dumped


texts = st.text() | st.sampled_from(
    ["null", "True", "1e5", "1e400", "- a", "a: b", "---", "#", "\x85", "\u2028", "\ufeff"]
)
leaves = (
    texts
    | st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(10**16), 10**16)
)


@settings(deadline=None)
@given(leaves | st.lists(leaves))
def test_any_value_reads_back_equal(value: object) -> None:
    read = parse_yaml(f"key: {yaml_value(value)}\nnext: 1\n", "x").value
    assert read == {"key": value, "next": 1}
    assert type(read["key"]) is type(value)


@settings(deadline=None)
@given(system=texts, prompts=st.lists(texts), rate=st.floats(1e-300, 1e300))
def test_any_recipe_loads_back_equal(system: str, prompts: list[str], rate: float) -> None:
    overrides = [
        "data.train.format=template",
        "data.train.template={user: '{q}', assistant: '{a}'}",
        f"data.train.template.system={yaml_value(system)}",
        f"eval.prompts={yaml_value(prompts)}",
        f"train.learning_rate={yaml_value(rate)}",
    ]
    recipe = parse(*overrides)
    assert recipe.eval.prompts == prompts
    assert parse_recipe(dump_recipe(recipe), "dumped") == recipe


def test_difference_of_two_recipes() -> None:
    new = parse(
        "train.learning_rate=1e-3", "lora={r: 8}", "train.method=lora", "data.train.limit=5"
    )
    assert diff_recipes(parse(), new) == [
        "data.train.limit: null -> 5",
        "train.method: full -> lora",
        "train.learning_rate: 1e-4 -> 1e-3",
        "lora.r: null -> 8",
        "lora.alpha: null -> 32.0",
        "lora.dropout: null -> 0.0",
        "lora.targets: null -> [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj]",
    ]
    assert diff_recipes(new, new) == []


# Cost


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return {re.split(r"\.", name)[0] for name in result.stdout.split()}


def test_nothing_heavy_is_imported() -> None:
    heavy = {"numpy", "jax", "torch", "pyarrow", "fsspec", "transformers"}
    assert not heavy & modules_after("import tunesmith.recipe.schema")
    assert not heavy & modules_after("import tunesmith.recipe.load as l; l.load_recipe('demo')")


def test_yaml_and_pydantic_are_imported_with_the_first_recipe_only() -> None:
    assert not {"ruamel", "pydantic"} & modules_after("import tunesmith.recipe.load")
