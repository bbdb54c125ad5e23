"""What a run has come to, for people."""

from __future__ import annotations

from typing import Any


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """A run's summary as a small table and a few lines."""
    lines = [f"{'':24}{'before':>12}{'after':>12}"]
    for name in ("loss", "execution_accuracy", "exact_match"):
        before, after = summary["before"][name], summary["after"][name]
        if before is not None or after is not None:
            label = name.replace("_", " ")
            lines.append(f"{label:24}{_figure(name, before):>12}{_figure(name, after):>12}")
    speed, export = summary["tokens_per_second"], summary["export"]
    facts = {
        "training tokens/s": speed and f"{speed:,.0f}",
        "target tokens": summary["target_tokens"] and f"{summary['target_tokens']:,}",
        "peak memory": summary["peak_bytes"] and f"{summary['peak_bytes'] / 2**30:.1f} GiB",
        "seconds": summary["seconds"] and f"{summary['seconds']:,.0f}",
        "export": export["path"],
        "on the Hub": summary.get("hub", {}).get("url"),
        "largest logit gap": export["max_logit_gap"] and f"{export['max_logit_gap']:.1e}",
    }
    return lines + [f"{name:24}{value:>24}" for name, value in facts.items() if value]


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if name == "loss" else f"{value:.1%}"
