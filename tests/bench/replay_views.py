"""Rivals with vLLM's own flags beside Tonnage's, and a plain Service beside a router that knows.

    python tests/bench/replay_views.py --traces FOLDER --out runs --page tests/bench/replay_views.md

``replay.py`` gives rivals the flags that Tonnage chose, and spreads requests at random, as a plain
Service does. Here some of its cases are replayed in other views too, with one cold start and one
seed. Runs are files, as those of ``replay.py``, and those of the usual view are the same files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import click
from measured import OUT, PAGE, PROCESSES, TRACES, table, write_page
from replay_cases import CONTEXT_TOKENS, VLLM_FLAGS, View, chosen_cases, traces_in
from replay_report import WHOLE_MEANING, Found, cell, over_all
from replay_runs import Draw, Run, done

from tonnage.replay.policy import BEST_STATIC, TONNAGE
from tonnage.units import MILLION, format_s

CASES = (
    "ramp", "drift", "bursts", "llmd", "swap", "azure2023_conv", "servegen_mlarge_14d_x125",
)  # fmt: skip
POLICIES = (
    TONNAGE, BEST_STATIC, "llmd-slo", "wva-queueing", "wva-throughput", "llm-scaling-manager",
    "dynamo-classic", "ray",
)  # fmt: skip
START_S: Final = 120.0
VIEWS = tuple(
    View(routing=routing, has_vllm_flags=has_vllm_flags)
    for routing in ("Service", "LeastOutstanding")
    for has_vllm_flags in (False, True)
)
MEANING = f"""\
# Replay: whose flags, and who routes

Written by `tests/bench/replay_views.py`.

Simulated, not measured: the model, the GPU and the promises of [the benchmark](replay.md),
contextLength {CONTEXT_TOKENS}, engines as fast as believed, starts of {format_s(START_S)}, one
seed. Rivals are models of their controllers, with the knobs that their projects ship. In each view
all policies get the same requests and begin with as many replicas.

- Tonnage's flags: those of its plan, which [the benchmark](replay.md) gives to all. vLLM's flags:
  `--max-num-seqs {VLLM_FLAGS["max_num_seqs"]}` and
  `--max-num-batched-tokens {VLLM_FLAGS["max_num_batched_tokens"]}`, which vLLM 0.33 takes on an
  H100 where nobody says otherwise. Rivals that model a replica (`wva-queueing`, `dynamo-classic`,
  `llm-scaling-manager`) are told the flags that run. Tonnage chooses its own: it is the same there,
  and stands beside.
- Service: requests go to any replica, at random. LeastOutstanding: a router sends each to the
  replica with the fewest; plans know of it (`scaling.routing`), rivals meet what it changes.
{WHOLE_MEANING}
- `{BEST_STATIC}`: in hindsight the smallest constant fleet that keeps the target, with the view's
  flags and routing."""

CPU: Final = """\
## What a replay takes

CPU seconds per million requests, the median of the cases, on a busy machine: hours of 13,000 to
209,000 requests. Who comes first in a case pays for the requests that are drawn; hindsight runs
several fleets."""


def page_of(by_view: Mapping[View, Found], policies: Sequence[str]) -> str:
    """Return the page: each view over all cases, then all views case by case."""
    parts = [MEANING, "## Over all cases"]
    for view, found in by_view.items():
        parts += [f"### {view}", over_all(found, policies)]
    header = ["policy", *map(str, by_view)]
    cpu = [
        [
            policy,
            *(_cpu_s([each.get(policy) for each in found.values()]) for found in by_view.values()),
        ]
        for policy in policies
    ]
    parts += [CPU, table(header, cpu), "## By case", "Share kept / GPU-hours."]
    for places in zip(*(found.items() for found in by_view.values()), strict=True):
        rows = [[policy, *(cell(runs.get(policy)) for _, runs in places)] for policy in policies]
        parts += [f"### {places[0][0].case}", table(header, rows)]
    return "\n\n".join(parts) + "\n"


def _cpu_s(runs: Sequence[Run | None]) -> str:
    each = [
        MILLION * run.cpu_s / run.figures["num_requests"] for run in runs if run and run.figures
    ]
    return f"{median(each):.0f}" if each else "-"


@click.command()
@TRACES
@OUT
@PAGE
@PROCESSES
def main(*, traces: Path, folder: Path, page: Path | None, processes: int) -> None:
    """Replay policies in each view, and write how they fare in it."""
    cases = chosen_cases(traces_in(traces), CASES)
    by_view = {
        view: done(
            [Draw(case=case, start_s=START_S, speed=1.0, seed=0, view=view) for case in cases],
            POLICIES,
            folder,
            processes,
        )
        for view in VIEWS
    }
    if page:
        write_page(page, page_of(by_view, POLICIES))
    for view, found in by_view.items():
        click.echo(f"{view}\n{over_all(found, POLICIES)}")


if __name__ == "__main__":
    main()
