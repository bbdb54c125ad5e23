"""`tunesmith demo`: the whole way once, on real weights, with the result shown at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tunesmith.demo.generate import write_demo_data
from tunesmith.engines.contract import Say
from tunesmith.prepare import run_dir
from tunesmith.recipe.load import load_recipe
from tunesmith.report import summary_lines
from tunesmith.runs.rundir import RunDir, read_json
from tunesmith.train import train_recipe

DATA_DIR = Path("runs/demo-data")
_SHOWN = 4


def run_demo(say: Say) -> dict[str, Any]:
    """Make the data, run the recipe `demo`, show before and after; the run's summary.

    The second time the run is finished, and only its result is shown.

    Raises:
        UserError: see `train_recipe`.
    """
    say("Gemma 3 270M (base, 4-bit weights dequantised) learns text-to-SQL")
    say(f"making the data: {DATA_DIR}")
    write_demo_data(DATA_DIR)
    loaded = load_recipe("demo")
    summary = train_recipe(loaded, say)
    assert summary is not None  # one process alone
    run = run_dir(loaded.recipe)
    print()
    for line in [*_answers(run), "", *summary_lines(summary)]:
        print(line)
    print(f"\nAsk it yourself:  tunesmith generate {run.path}")
    return summary


def _answers(run: RunDir) -> list[str]:
    """Some held-out questions with the answers before and after."""
    before, after = (read_json(run.evaluation(when))["text_to_sql"] for when in ("before", "after"))
    lines = ["Held-out questions, on schemas and in words that training never showed:"]
    step = max(1, len(after["questions"]) // _SHOWN)
    for i in range(0, step * _SHOWN, step):
        lines.append(f"\n  {after['questions'][i]}")
        for when, record in (("before", before), ("after", after)):
            answer = " ".join(record["answers"][i].split())
            verdict = record["outcomes"][i]["status"]
            lines.append(f"    {when:7}{answer[:100] or '(nothing)'}  [{verdict}]")
    return lines
