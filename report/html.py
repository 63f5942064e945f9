"""`inferc inspect --html`: one self-contained offline page; all numbers come from the report."""

from __future__ import annotations

import json
from base64 import b64encode
from importlib.resources import files
from typing import Any

import jinja2

from inferc import report_file
from inferc.report.machines import MACHINES, TENSOR
from inferc.report.model import Report
from inferc.report.saved_profile import Profile
from inferc.report.terminal import NOT_COUNTED, memory_rows


def render(report: Report, profile: Profile | None = None) -> str:
    """The page as text. The formulas are evaluated in the page, for the workload chosen there.

    With a profile the page can show what was measured beside what is predicted.
    """
    source = files("inferc.report").joinpath("templates/report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    # The page shows bodies of kernels; whole stages, which are half of a report, are `--ir`'s.
    data = report_file.encode({k: v for k, v in report.items() if k != "stages"})
    kernels = [k for phase in report["phases"].values() for k in phase["kernels"]]
    kinds = sorted({TENSOR, *(k.get("arithmetic", TENSOR) for k in kernels)})
    machines = json.dumps(
        {m.name: [m.bytes_per_second, {k: m.rate(k) for k in kinds}] for m in MACHINES.values()}
    )
    return environment.from_string(source).render(
        title=f"{report['model']['name']} · inferc",
        data=b64encode(data).decode(),
        machines=machines,
        # No `<`: whatever is in it, it can neither end the script element nor open a comment.
        measured=json.dumps(_measured(profile)).replace("<", "\\u003c"),
        memory=json.dumps(memory_rows(report)),
        not_counted=NOT_COUNTED,
    )


def _measured(profile: Profile | None) -> list[dict[str, Any]]:
    """What the page needs of each phase measured: workload, limits, a time for each call."""
    if profile is None:
        return []
    keys = (
        "phase", "tokens", "sequences", "context_tokens", "workers", "steps", "step_us",
        "library_us", "read_gb_per_second", "gflops_per_second",
    )  # fmt: skip
    return [
        {
            **{k: entry[k] for k in keys},
            "integer_gops_per_second": entry.get("integer_gops_per_second", {}),
            "calls_us": [c["elapsed_us"] for c in entry["calls"]],
        }
        for entry in profile["profiles"]
    ]
