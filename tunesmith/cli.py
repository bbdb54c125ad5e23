"""The verbs. Each one's code, and the libraries behind it, load when it is called."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tunesmith import __version__
from tunesmith.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_PIPE_CLOSED, UserError

if TYPE_CHECKING:
    from tunesmith.recipe.schema import Generation

_RECIPE_HELP = "name of a shipped recipe (`tunesmith recipes list`) or a YAML file"
_TRAINING_INTERRUPTED = "interrupted; the same command goes on from the last checkpoint"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit status (see `tunesmith.errors`)."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(argv, argparse.Namespace(argv=argv))
    try:
        return arguments.run(arguments) or EXIT_OK
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(arguments.interrupted, file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output is gone, as in `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python flushes again
        return EXIT_PIPE_CLOSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tunesmith", description="Fine-tune Gemma on your own data with one recipe file."
    )
    parser.add_argument("--version", action="version", version=f"tunesmith {__version__}")
    parser.set_defaults(interrupted="interrupted")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    _add_train(verbs)
    _add_evaluate(verbs)
    _add_generate(verbs)
    _add_inspect(verbs)
    _add_export(verbs)
    _add_plan(verbs)
    _add_recipes(verbs)
    demo = verbs.add_parser("demo", help="fine-tune Gemma 3 270M for text-to-SQL, here and now")
    demo.set_defaults(run=_demo, interrupted=_TRAINING_INTERRUPTED)
    return parser


def _add_recipe(parser: argparse.ArgumentParser, *, text: str = _RECIPE_HELP) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help=text)
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="A.B=VALUE",
        action="append",
        default=[],
        help="change a value of the recipe, e.g. --set train.learning_rate=1e-4; may be repeated",
    )


def _say(line: str) -> None:
    print(line, flush=True)


# -- train --------------------------------------------------------------------------------------


def _add_train(verbs: argparse._SubParsersAction) -> None:
    train = verbs.add_parser(
        "train",
        help="train, evaluate and export as a recipe says; goes on where a run stopped",
        description="Train as the recipe says. In a run folder that is unfinished it goes on from "
        "the last checkpoint; of a finished one it shows the result.",
    )
    _add_recipe(train)
    train.add_argument(
        "--fork", metavar="NEW", type=Path, help="start a new run folder from this run's weights"
    )
    train.set_defaults(run=_train, interrupted=_TRAINING_INTERRUPTED)


def _train(arguments: argparse.Namespace) -> int | None:
    from tunesmith.recipe.load import load_recipe
    from tunesmith.report import summary_lines
    from tunesmith.train import start_processes, train_recipe

    begun = time.perf_counter()

    def say(line: str) -> None:
        _say(f"[{time.perf_counter() - begun:6.1f} s] {line}")

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    status = start_processes(loaded, arguments.argv, say, fork=arguments.fork)
    if status is not None:
        return status
    summary = train_recipe(loaded, say, fork=arguments.fork)
    for line in summary_lines(summary) if summary else ():
        _say(line)
    return None


# -- evaluate -----------------------------------------------------------------------------------


def _add_evaluate(verbs: argparse._SubParsersAction) -> None:
    evaluate = verbs.add_parser(
        "evaluate",
        help="measure a run's exported model, or any model on a recipe's evaluation rows",
    )
    _add_recipe(evaluate, text=f"a run folder; or {_RECIPE_HELP}, whose base model is measured")
    evaluate.add_argument("--model", type=Path, metavar="DIR", help="measure this model instead")
    evaluate.add_argument("--json", action="store_true", help="print figures and answers as JSON")
    evaluate.set_defaults(run=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> None:
    from tunesmith.evaluate import evaluate_model

    say = (lambda line: print(line, file=sys.stderr)) if arguments.json else _say
    figures, record = evaluate_model(
        arguments.recipe, arguments.overrides, model_dir=arguments.model, say=say
    )
    if arguments.json:
        print(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        for line in figures.lines():
            _say(line)


# -- generate -----------------------------------------------------------------------------------


def _add_generate(verbs: argparse._SubParsersAction) -> None:
    generate = verbs.add_parser(
        "generate",
        help="ask a run's model, or any model; without --prompt it reads lines and converses",
    )
    generate.add_argument(
        "model", metavar="MODEL", help="run folder, model directory, .gguf, pypi:PACKAGE or Hub id"
    )
    generate.add_argument(
        "--prompt", action="append", metavar="TEXT", help="answer this and end; may be repeated"
    )
    generate.add_argument("--plain", action="store_true", help="continue text, without chat turns")
    generate.add_argument("--max-new-tokens", type=int, metavar="N", help="longest answer")
    generate.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    generate.add_argument("--top-k", type=int, metavar="K", help="of the K likeliest tokens")
    generate.add_argument("--top-p", type=float, metavar="P", help="of the likeliest P of chances")
    generate.add_argument("--seed", type=int, metavar="S", help="seeds the sampling")
    generate.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> None:
    from tunesmith.generate import converse, generate, open_speaker, read_line

    speaker = open_speaker(
        arguments.model,
        _sampling(arguments),
        lambda line: print(line, file=sys.stderr),
        plain=arguments.plain,
    )
    if arguments.prompt is None:
        converse(speaker, read_line, _say)
        return
    for answer in generate(speaker, arguments.prompt):
        _say(answer)


def _sampling(arguments: argparse.Namespace) -> Generation | None:
    """The flags given, over the defaults; None without any, which leaves a run's own settings."""
    from pydantic import ValidationError

    from tunesmith.recipe.schema import Generation

    names = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
    given = {n: v for n in names if (v := getattr(arguments, n)) is not None}
    try:
        return Generation(**given) if given else None
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-")
        raise UserError(f"{flag} {first['input']}: {first['msg'].lower()}") from error


# -- inspect, export ----------------------------------------------------------------------------


def _add_inspect(verbs: argparse._SubParsersAction) -> None:
    inspect = verbs.add_parser(
        "inspect", help="show what will be trained, token by token, before anything trains"
    )
    _add_recipe(inspect)
    inspect.add_argument("--rows", type=_count, default=3, metavar="N", help="rows to show (3)")
    inspect.set_defaults(run=_inspect)


def _count(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def _inspect(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from tunesmith.inspect import inspect
    from tunesmith.recipe.load import load_recipe

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    inspect(loaded, rows=arguments.rows, console=Console())


def _add_export(verbs: argparse._SubParsersAction) -> None:
    export = verbs.add_parser(
        "export",
        help="write a run's trained model as a Hugging Face directory, and prove it",
        description="A run exports by itself when it ends. This does it again, in another form or "
        "from a run that has not ended.",
    )
    export.add_argument("run_dir", metavar="RUN", type=Path, help="run folder")
    export.add_argument("out_dir", metavar="DIR", type=Path, help="new directory to write")
    export.add_argument("--kind", choices=("merged", "adapter"), help="the recipe's run.export")
    export.add_argument(
        "--dtype", choices=("base", "bfloat16", "float32"), help="the recipe's run.export_dtype"
    )
    export.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> None:
    from tunesmith.export import export_run

    done = export_run(
        arguments.run_dir, arguments.out_dir, kind=arguments.kind, dtype=arguments.dtype, say=_say
    )
    for line in done.lines():
        _say(line)


# -- plan ---------------------------------------------------------------------------------------


def _add_plan(verbs: argparse._SubParsersAction) -> None:
    plan = verbs.add_parser("plan", help="will it fit? the memory of a step on machines not here")
    _add_recipe(plan)
    plan.add_argument(
        "--on",
        nargs="+",
        default=[],
        metavar="TARGET",
        help="chips and how many, e.g. b200x8 h100x8; as many B200 as `parallel` names by default",
    )
    plan.add_argument("--json", type=Path, metavar="FILE", help="write the plan there too")
    plan.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> None:
    from tunesmith.plan import plan_recipe
    from tunesmith.recipe.load import load_recipe

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    plan_recipe(loaded, arguments.on, _say, json_path=arguments.json)


# -- recipes, demo ------------------------------------------------------------------------------


def _add_recipes(verbs: argparse._SubParsersAction) -> None:
    recipes = verbs.add_parser("recipes", help="list, show, copy or write recipes")
    commands = recipes.add_subparsers(metavar="COMMAND", required=True)
    commands.add_parser("list", help="the shipped recipes").set_defaults(run=_recipes_list)
    show = commands.add_parser("show", help="print a shipped recipe")
    show.add_argument("name", metavar="NAME")
    show.set_defaults(run=_recipes_show)
    copy = commands.add_parser("copy", help="copy a shipped recipe to a file of your own")
    copy.add_argument("name", metavar="NAME")
    copy.add_argument("to", metavar="FILE", nargs="?", help="NAME.yaml by default")
    copy.set_defaults(run=_recipes_copy)
    new = commands.add_parser("new", help="look at your data and write a recipe that runs")
    new.add_argument("--data", action="append", required=True, metavar="FILE", help="your rows")
    new.add_argument("--name", help="of the recipe; the file's name by default")
    new.add_argument("--model", help="Hub id, directory, .gguf or pypi:PACKAGE")
    new.add_argument("--to", metavar="FILE", help="NAME.yaml by default")
    new.set_defaults(run=_recipes_new)
    schema = commands.add_parser("schema", help="print the JSON schema of recipes, for editors")
    schema.set_defaults(run=_recipes_schema)


def _recipes_list(_: argparse.Namespace) -> None:
    from tunesmith.recipe_verbs import list_recipes

    list_recipes(_say)


def _recipes_show(arguments: argparse.Namespace) -> None:
    from tunesmith.recipe_verbs import show_recipe

    show_recipe(arguments.name, _say)


def _recipes_copy(arguments: argparse.Namespace) -> None:
    from tunesmith.recipe_verbs import copy_recipe

    copy_recipe(arguments.name, arguments.to, _say)


def _recipes_new(arguments: argparse.Namespace) -> None:
    from tunesmith.recipe_verbs import write_new_recipe

    write_new_recipe(
        arguments.data, name=arguments.name, model=arguments.model, to=arguments.to, say=_say
    )


def _recipes_schema(_: argparse.Namespace) -> None:
    from tunesmith.recipe_verbs import write_schema

    write_schema(_say)


def _demo(_: argparse.Namespace) -> None:
    from tunesmith.demo.run import run_demo

    begun = time.perf_counter()
    run_demo(lambda line: _say(f"[{time.perf_counter() - begun:6.1f} s] {line}"))


if __name__ == "__main__":
    sys.exit(main())
