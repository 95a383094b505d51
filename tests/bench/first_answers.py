"""What 200 invocations answer first, beside a sweep of every split, and beside what asks for less.

    python tests/bench/first_answers.py ask OUT     each command in a process: exit, CPU, split, USD
    python tests/bench/first_answers.py sweep OUT   each split by itself, also over several nodes
    python tests/bench/first_answers.py pairs OUT   each request, and the same with one thing looser

Each goes on where it stopped, and ends with a line of figures. What is asked was drawn by a seed.
"""

import json
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tonnage.catalog.gpu import built_in_gpus
from tonnage.cli.read.manifest import parse
from tonnage.cli.read.spec_overrides import change_of, manifest_of_changes
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import SizingRequest, ask, look_up
from tonnage.sizing.search import cost_of, size

COMMANDS = Path(__file__).with_suffix(".txt").read_text().splitlines()
"""140 of the first bench of answers, and 60: larger models, tighter targets, cached prompts."""
FIELDS = {
    "--model": "model.id",
    "--gpu": "hardware.gpu",
    "--rps": "demand.requestsPerSecond",
    "--prompt": "demand.promptTokens.mean",
    "--output": "demand.outputTokens.mean",
    "--ttft": "slo.timeToFirstToken.p95",
    "--tpot": "slo.timePerOutputToken.p95",
}
LOOSER, ERROR = 1.25, 1.15


def answer_of(line: str) -> dict[str, Any]:
    """Return {exit, cpu_s, split, replicas, usd} of one command."""
    verb, *options = shlex.split(line)
    form = [] if verb == "init" else ["-o", "json"]
    program, before = [sys.executable, "-P", "-m", "tonnage", verb, *options, *form], os.times()
    done = subprocess.run(program, capture_output=True, text=True, check=False)  # noqa: S603
    row = {"exit": done.returncode, "cpu_s": round(sum(os.times()[2:4]) - sum(before[2:4]), 2)}
    if verb != "plan" or done.returncode:
        return row | {"error": (done.stderr.strip().splitlines() or [""])[-1][:200]}
    [found] = json.loads(done.stdout)
    plan, cost = found["plan"], (found["atDemand"] or {}).get("cost") or {}
    shown = {"gpus": plan["gpusPerReplica"], "replicas": plan["replicas"]}
    return row | shown | {"split": plan.get("parallelism"), "usd": cost.get("perHour")}


def request_of(line: str) -> SizingRequest:
    """Return what the options of a plan ask for, with no bound of replicas."""
    options = shlex.split(line)[1:]
    given = dict(zip(options[::2], options[1::2], strict=True))
    texts = [(field, given[option]) for option, field in FIELDS.items()]
    changes = [(field, int(text) if text.isdecimal() else text) for field, text in texts]
    changes += [change_of(given["--set"])] if "--set" in given else []
    spec = parse(manifest_of_changes(tuple(changes))).spec
    return replace(ask(spec, look_up(spec, built_in_gpus())), max_replicas=None)


def paid(request: SizingRequest) -> tuple[float, str] | None:
    """Return USD per hour and the split that is chosen; None where nothing serves."""
    with suppress(SizingError):
        found = size(request, has_several_nodes=True)
        return round(cost_of(found)[1], 2), str(found.parallelism)
    return None


def swept(line: str) -> dict[str, Any]:
    """Return the split that is chosen, and the three cheapest, each sized by itself."""
    request, found = request_of(line), []
    for split in splits_for(request):
        with suppress(SizingError):
            found.append((round(cost_of(size_with(request, split))[1], 2), str(split)))
    return {"chosen": paid(request), "swept": sorted(found)[:3]}


def pairs(line: str) -> dict[str, Any]:
    """Return what the request costs, and with one thing looser each."""
    request = request_of(line)
    slo, work, demand = request.slo, request.workload, request.demand
    prompt = replace(work.prompt, mean_tokens=work.prompt.mean_tokens / LOOSER)
    cached = 1 - (1 - work.cached_fraction) / LOOSER
    ttft, tpot = (
        tuple(replace(each, limit_s=LOOSER * each.limit_s) for each in targets)
        for targets in (slo.ttft, slo.tpot)
    )
    rate = (demand.requests_per_s or 0.0) / LOOSER
    looser = {
        "TTFT": replace(request, slo=replace(slo, ttft=ttft)),
        "TPOT": replace(request, slo=replace(slo, tpot=tpot)),
        "load": replace(request, demand=replace(demand, requests_per_s=rate)),
        "prompt": replace(request, workload=replace(work, prompt=prompt)),
        "answer": replace(
            request, workload=replace(work, output_tokens=work.output_tokens / LOOSER)
        ),
        "cache": replace(request, workload=replace(work, cached_fraction=cached)),
    }
    before = paid(request)
    return {"before": before} | (
        {name: paid(each) for name, each in looser.items()} if before else {}
    )


def figures(rows: list[dict[str, Any]]) -> str:
    """Return the figures of what is known, as one line."""
    cpu_s = sorted(row["cpu_s"] for row in rows if "cpu_s" in row) or [0.0]
    ratios = [row["chosen"][0] / row["swept"][0][0] for row in rows if row.get("chosen")]
    both = [
        (row["before"][0], row[name])
        for row in rows
        if row.get("before")
        for name in row.keys() - {"before", "line", "what"}
    ]
    dearer = [after for usd, after in both if after is None or after[0] > ERROR * usd]
    close = sum(each <= 1.02 for each in ratios)
    return (
        f"CPU: median {cpu_s[len(cpu_s) // 2]} s, most {cpu_s[-1]} s; {len(ratios)} swept, {close} "
        f"within 2 %, most {max(ratios, default=0):.2f}; {len(both)} pairs, of which {len(dearer)} "
        "cost more by more than the error"
    )


@click.command()
@click.argument("what", type=click.Choice(["ask", "sweep", "pairs"]))
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--every", default=1, help="Each so many-th command.")
@click.option("--seconds", default=900.0, show_default=True, help="Of CPU, after which it ends.")
def main(*, what: str, out: Path, every: int, seconds: float) -> None:
    known = [json.loads(each) for each in (out.read_text().splitlines() if out.exists() else ())]
    done = {row["line"] for row in known if row["what"] == what}
    answer = {"ask": answer_of, "sweep": swept, "pairs": pairs}[what]
    lines = [each for each in COMMANDS if what == "ask" or all(name in each for name in FIELDS)]
    with out.open("a") as file:
        for line in (
            each
            for each in lines[::every]
            if each not in done and (what == "ask" or each.startswith("plan"))
        ):
            if sum(os.times()[:4]) < seconds:
                known.append({"line": line, "what": what, **answer(line)})
                click.echo(json.dumps(known[-1]), file)
                file.flush()
    click.echo(figures([row for row in known if row["what"] == what]))


if __name__ == "__main__":
    main()
