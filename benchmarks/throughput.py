"""Measures tunesmith's training speed beside a baseline, in turn, and prints one JSON line.

    python -m benchmarks.throughput RECIPE --baseline 'COMMAND' [--pairs 5] [--set a.b=value ...]

COMMAND is anything whose last line of output is a JSON object with a field named
`*tokens_per_s*`. benchmarks/README.md says how figures are taken and what the output means.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tunesmith.errors import EXIT_INTERRUPTED, UserError

DESCRIPTION = "Measure tunesmith's training speed beside a baseline, in turn."
COUNTED = "tokens that are not padding, prompt and answer alike, each once per step"
_RATE = "*tokens_per_s*"
_ERROR_LINES = 15


class Finished(NamedTuple):
    """What a command printed last, and the most memory it held at a time (resident set)."""

    printed: dict[str, Any]
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class Pair:
    """One run of ours and one of the baseline, back to back; rates in real tokens per second."""

    ours: float
    baseline: float
    ours_peak: int
    baseline_peak: int

    @property
    def ratio(self) -> float:
        """How many times as fast as the baseline."""
        return self.ours / self.baseline


def run(command: str | Sequence[str]) -> Finished:
    """Run a command to its end; a string goes through the shell.

    Raises:
        UserError: it failed, or its last line is not a JSON object.
    """
    shown = command if isinstance(command, str) else " ".join(command)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, shell=isinstance(command, str), stdout=out, stderr=err)
        # Not process.wait(): only wait4 tells the memory of this one process (and its children).
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, errors = out.read().decode(errors="replace"), err.read().decode(errors="replace")
    if process.returncode:
        told = "\n".join((text + errors).splitlines()[-_ERROR_LINES:])
        raise UserError(f"exit status {process.returncode} of: {shown}\n{told}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Finished(last_object(text, shown), usage.ru_maxrss * unit)


def last_object(text: str, command: str) -> dict[str, Any]:
    """The JSON object in the last line that is not empty.

    Raises:
        UserError: it is none.
    """
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    try:
        value = json.loads(last)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(
            f"the last line is not a JSON object: {last[:200]!r}\nprinted by: {command}",
            "The command must print its figures as one line of JSON, last.",
        )
    return value


def rate_field(printed: dict[str, Any]) -> str:
    """Name of the field with the tokens per second; rates of target tokens alone do not count.

    Raises:
        UserError: no such field, or several.
    """
    names = [
        name
        for name, value in printed.items()
        if fnmatch.fnmatch(name, _RATE)
        and not name.startswith("target")
        and isinstance(value, int | float)
    ]
    if len(names) != 1:
        raise UserError(
            f"the baseline must print exactly one number named {_RATE}, "
            f"but has {', '.join(names) or 'none'} among {', '.join(printed)}"
        )
    return names[0]


def real_rate(printed: dict[str, Any], useful_share: float | None) -> float:
    """Real tokens per second of a baseline.

    Args:
        printed: its figures.
        useful_share: share of its positions that are not padding, where it counts them all.

    Raises:
        UserError: the rate is missing or not positive, or the share is missing or out of place.
    """
    name = rate_field(printed)
    padded = name.startswith("padded")
    if padded and useful_share is None:
        raise UserError(
            f"the baseline's {name} counts padding too",
            "Give --baseline-useful-share, the share of positions that are not padding.",
        )
    if not padded and useful_share is not None:
        raise UserError(
            f"--baseline-useful-share is given, but the baseline's {name} does not say that it "
            "counts padding",
            "Leave it out, or have the baseline call the field padded_tokens_per_s.",
        )
    rate = printed[name] * (useful_share or 1.0)
    if not rate > 0:
        raise UserError(f"the baseline's {name} is {printed[name]}; a rate is above 0")
    return rate


def spread(values: Sequence[float], digits: int = 1) -> dict[str, Any]:
    """Median, least and most, and every value in order of measurement."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "each": [round(value, digits) for value in values],
    }


def ceiling(measured: Sequence[dict[str, dict[str, float]]], dtype: str) -> float:
    """Best rate of any shape in any of the measurements, in GFLOP/s."""
    return max(rate for rates in measured for rate in rates[dtype].values())


def compare(
    pairs: Sequence[Pair], ours: dict[str, Any], matmul: Sequence[dict[str, dict[str, float]]]
) -> dict[str, Any]:
    """All figures of a comparison.

    Both shares of the ceiling are by one measure: the operations that a real token of ours needs
    (`flops_per_token`), times real tokens per second, over the best matrix product in our type.

    Args:
        pairs: in the order in which they ran.
        ours: what our last run printed.
        matmul: what `benchmarks.matmul` printed, early and late.
    """
    both = {
        "ours": spread([pair.ours for pair in pairs]),
        "baseline": spread([pair.baseline for pair in pairs]),
    }
    best = {dtype: ceiling(matmul, dtype) for dtype in matmul[0]}
    dtype, needed = ours["compute_dtype"], ours["flops_per_token"]
    return {
        "real_tokens_per_second": both,
        "ratio": spread([pair.ratio for pair in pairs], digits=3),
        "peak_rss_bytes": {
            "ours": max(pair.ours_peak for pair in pairs),
            "baseline": max(pair.baseline_peak for pair in pairs),
        },
        "share_of_ceiling": {
            name: round(rates["median"] * needed / (best[dtype] * 1e9), 4)
            for name, rates in both.items()
        },
        "ceiling_gflops": best,
        "counted": COUNTED,
    }


def measure(
    ours_command: Sequence[str], baseline: str, pairs: int, useful_share: float | None
) -> dict[str, Any]:
    """Run ours and the baseline in turn, `pairs` times, and look at the ceiling twice.

    Raises:
        UserError: a command failed or did not print what it should.
    """
    load_before = os.getloadavg()[0]
    runs: list[Finished] = []
    matmul, done = [], []
    for number in range(1, pairs + 1):
        ours, theirs = run(ours_command), run(baseline)
        runs.append(ours)
        pair = Pair(
            ours.printed["real_tokens_per_second"],
            real_rate(theirs.printed, useful_share),
            ours.peak_rss_bytes,
            theirs.peak_rss_bytes,
        )
        done.append(pair)
        _say(
            f"pair {number} of {pairs}: ours {pair.ours:,.1f}, baseline {pair.baseline:,.1f} real "
            f"tokens/s, ratio {pair.ratio:.2f}"
        )
        if number in (1, pairs):  # not before the first pair, so that bad input is told at once
            matmul.append(run([sys.executable, "-m", "benchmarks.matmul"]).printed)
    # Later runs find the compiled program in the cache.
    printed = runs[-1].printed | {"compile_seconds": runs[0].printed["compile_seconds"]}
    return compare(done, printed, matmul) | {
        "ours": printed,
        "baseline": {"command": baseline, "useful_share": useful_share, "printed": theirs.printed},
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)],
        },
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.throughput", description=DESCRIPTION)
    parser.add_argument("recipe", metavar="RECIPE", help="a shipped recipe's name or a YAML file")
    parser.add_argument("--set", dest="overrides", metavar="A.B=VALUE", action="append", default=[])
    parser.add_argument("--steps", type=int, default=10, help="steps of ours to count (10)")
    parser.add_argument("--warmup", type=int, default=1, help="steps of ours before them (1)")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each (5)")
    parser.add_argument("--baseline", metavar="COMMAND", required=True)
    parser.add_argument(
        "--baseline-useful-share",
        metavar="SHARE",
        type=float,
        help="share of the baseline's positions that are not padding, if it counts them all",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Compare as the command line says."""
    parser = _parser()
    given = parser.parse_args(argv)
    share = given.baseline_useful_share
    if given.pairs < 1:
        parser.error("--pairs must be 1 or more")
    if share is not None and not 0 < share <= 1:
        parser.error("--baseline-useful-share must be above 0 and at most 1")
    sets = [part for override in given.overrides for part in ("--set", override)]
    ours = [sys.executable, "-m", "benchmarks.ours", given.recipe, *sets]
    ours += ["--steps", str(given.steps), "--warmup", str(given.warmup)]
    try:
        figures = measure(ours, given.baseline, given.pairs, share)
    except UserError as error:
        _say(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    print(json.dumps(figures, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
