"""The table of a serving run in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEAD = (
    "| load | engine | within objective | goodput, requests/s | new tokens/s"
    " | TTFT p50 / p90 / p99, s | TPOT p50 / p90 / p99, ms | longest gap p50 / p99, ms | failed |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def report(results: Mapping[str, Any]) -> str:
    """The section, from what `bench.serving` wrote."""
    load, objective = results["load"], results["objective"]
    text = (
        "## A mixed serving load\n\n"
        f"{load['requests']} requests to {results['model']}, {results['weights']} weights, arrive"
        " as a Poisson process. Lengths are log-normal with the means of ShareGPT's conversations"
        f" (161 tokens of prompt, 338 of answer) times {load['scale']:g}; {load['shared']:.0%} of"
        f" the prompts begin with one of {load['system_prompts']} system prompts of"
        f" {results['system_tokens']} tokens more. Greedy, end of sequence ignored. Every engine"
        " gets the same requests at the same times, starts anew for each row, and has room for"
        f" {results['kv_tokens']:,} tokens of KV. A request meets the objective with its first"
        f" token within {objective['ttft_s']:.2f} s and the rest at"
        f" {objective['tpot_s'] * 1e3:.0f} ms a token or less: {objective['ttft_multiple']:g} and"
        f" {objective['tpot_multiple']:g} times the best unloaded medians of this run. Goodput"
        f" counts those. {results['machine']}, {results['threads']} threads."
    )
    engines = "\n".join(f"- {name}: {how}" for name, how in results["engines"].items())
    return "\n".join([text, "", engines, "", *_note(results), HEAD, *map(_line, results["rows"])])


def _note(results: Mapping[str, Any]) -> list[str]:
    return [results["note"], ""] if results.get("note") else []


def _line(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return f"| {row['load']} | {row['engine']} | {row['error']} | | | | | | |"
    cells = (
        row["load"],
        row["engine"],
        f"{row['within_objective']} of {row['requests']}" if "within_objective" in row else "",
        f"{row['goodput_per_s']:.2f}" if "goodput_per_s" in row else "",
        f"{row['new_tokens_per_s']:.0f}",
        _join(row["ttft_s"], ("p50", "p90", "p99"), 1, 2),
        _join(row["tpot_s"], ("p50", "p90", "p99"), 1e3, 0),
        _join(row["longest_gap_s"], ("p50", "p99"), 1e3, 0),
        str(row["failed"]),
    )
    return f"| {' | '.join(cells)} |"


def _join(
    found: Mapping[str, float] | None, names: tuple[str, ...], factor: float, digits: int
) -> str:
    if found is None:
        return "-"
    return " / ".join(f"{found[name] * factor:.{digits}f}" for name in names)
