"""What 140 invocations answer first, and what a sweep of every split would take.

    python tests/bench/first_answers.py ask --out answers.jsonl
    python tests/bench/first_answers.py sweep --out answers.jsonl [--every 1]
    python tests/bench/first_answers.py page --out answers.jsonl

``ask`` types each command in a process of its own and notes its exit code, its first line, its
seconds of CPU, the GPUs that it names and what they cost. ``sweep`` adds the cheapest split within
a node: it lists the splits itself, tensor x pipeline x data x context in every size, sizes each
alone and in full, and knows neither the bounds nor the order of the product's search. Both go on
where they stopped. The draw of the invocations is decided by a seed, not by what the product
answers.
"""

import itertools
import json
import math
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import yaml

from tonnage.catalog.gpu import built_in_gpus
from tonnage.cli.read.asked import manifest_of_changes
from tonnage.cli.read.manifest import parse
from tonnage.sizing.cost import cents
from tonnage.sizing.errors import InvalidParallelismError, SizingError
from tonnage.sizing.parallelism.rules import check_parallelism
from tonnage.sizing.plan import size_with
from tonnage.sizing.request import SizingRequest, ask, look_up
from tonnage.sizing.search import cost_of
from tonnage.sizing.split import Parallelism
from tonnage.units import count_of

SEED = 34
NUM_PLANS, NUM_COMPARED, NUM_WRITTEN = 92, 16, 16
PAGE = Path(__file__).with_name("first_answers.md")
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B",
    "openai/gpt-oss-120b",
    "openai/gpt-oss-20b",
    "zai-org/GLM-4.5-Air",
    "google/gemma-3-27b-it",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
)
GPUS = ("H100", "H200", "A100-80GB", "L40S", "B200", "L4")
RATES = (0.5, 2, 4, 10, 40, 200)
PROMPTS = (200, 1_000, 4_000, 16_000, 60_000)
OUTPUTS = (20, 150, 500, 2_000)
TTFTS = ("300ms", "600ms", "1s", "2s", "5s")
TPOTS = ("12ms", "20ms", "30ms", "50ms", "100ms")
BASE = "--model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --rps 4 --prompt 4000 --output 500"
ODD = (
    "plan --model meta-llama/Llama-3.1-8B-Instruct --gpu MI300X --rps 4",
    "plan --model meta-llama/Llama-3.1-8B-Instruct --gpu TPU-v5e --rps 4",
    "plan --model meta-llama/Llama-3.1-8B-Instruct --gpu H1000 --rps 4",
    "plan --model BAAI/bge-m3 --gpu H100 --rps 4",
    "plan --model no-such/model --gpu H100 --rps 4",
    f"plan {BASE} --ttft 1.5s --tpot 0.05s",
    f"plan {BASE} --ttft 1500 --tpot 50ms",
    f"plan {BASE} --ttft 1ms --tpot 50ms",
    f"plan {BASE} --ttft 2s --tpot 1ms",
    f"plan {BASE} --set contextLength=2000000",
    f"plan {BASE} --set contextLength=4096",
    f"plan {BASE} --set scaling.maxReplicas=1",
    f"plan {BASE} --set no.such.field=1",
    f"plan {BASE} --price H100=0",
    "plan --model meta-llama/Llama-3.1-405B-Instruct --gpu L4 --rps 1",
    "plan --model deepseek-ai/DeepSeek-V3 --gpu H200 --rps 10 --prompt 4000 --output 500",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A command, and what of the spec it asks for; None: nothing to sweep."""

    line: str
    changes: tuple[tuple[str, object], ...] | None


def invocations() -> Iterator[Invocation]:
    """Yield the 140, in the order of the table."""
    draw = random.Random(SEED)  # noqa: S311  (a draw of cases)
    for number in range(NUM_PLANS + NUM_COMPARED + NUM_WRITTEN):
        model, gpu = draw.choice(MODELS), draw.choice(GPUS)
        rate, prompt, output = draw.choice(RATES), draw.choice(PROMPTS), draw.choice(OUTPUTS)
        ttft, tpot = draw.choice(TTFTS), draw.choice(TPOTS)
        load = f"--rps {rate:g} --prompt {prompt} --output {output} --ttft {ttft} --tpot {tpot}"
        changes = (
            ("model.id", model),
            ("hardware.gpu", gpu),
            ("demand.requestsPerSecond", rate),
            ("demand.promptTokens.mean", prompt),
            ("demand.outputTokens.mean", output),
            ("slo.timeToFirstToken.p95", ttft),
            ("slo.timePerOutputToken.p95", tpot),
        )
        if number < NUM_PLANS:
            yield Invocation(line=f"plan --model {model} --gpu {gpu} {load}", changes=changes)
        elif number < NUM_PLANS + NUM_COMPARED:
            yield Invocation(line=f"compare --model {model} {load}", changes=None)
        else:
            yield Invocation(line=f"init --model {model} --gpu {gpu} {load}", changes=changes)
    yield from (Invocation(line=line, changes=None) for line in ODD)


@click.group()
def main() -> None:
    """Ask, sweep, and write the page."""


OUT = click.option("--out", type=click.Path(path_type=Path), required=True)


@main.command("ask")
@OUT
def ask_all(out: Path) -> None:
    """Type each command."""
    known = read(out)
    for each in invocations():
        if "exit_code" not in known.get(each.line, {}):
            append(out, {"line": each.line} | answer_of(each.line))


def answer_of(line: str) -> dict[str, object]:
    """Return {exit_code, cpu_s, answer, gpus, classes} of one command."""
    verb, *options = shlex.split(line)
    before = os.times()
    done = run([verb, *options])
    after = os.times()
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    said = done.stdout.splitlines() if done.returncode in {0, 2} else done.stderr.splitlines()
    lines = [each.strip() for each in said if each.strip() and "─" not in each]
    found: dict[str, object] = {
        "exit_code": done.returncode,
        "cpu_s": round(cpu_s, 2),
        "answer": next(iter(lines), ""),
    }
    return found | (gpus_in(verb, options, done.stdout) if done.returncode == 0 else {})


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "tonnage", *arguments]
    wide = os.environ | {"COLUMNS": "200"}  # so that no heading takes two lines
    return subprocess.run(program, capture_output=True, text=True, check=False, env=wide)  # noqa: S603


def gpus_in(verb: str, options: list[str], printed: str) -> dict[str, object]:
    """Return the GPUs of the first answer; of compare those of each class."""
    if verb == "init":
        spec = yaml.safe_load(printed)["spec"]
        replicas = spec["scaling"].get("maxReplicas")
        return {"gpus": None, "split": spec["hardware"].get("gpusPerReplica"), "most": replicas}
    found = json.loads(run([verb, *options, "-o", "json"]).stdout)
    if verb == "compare":
        classes = {
            each["gpu"]: each["plan"]["replicas"] * each["plan"]["gpusPerReplica"]
            for each in found["classes"]
            if each.get("plan")
        }
        return {"classes": classes}
    plan, asked = found[0]["plan"], found[0]["atDemand"]
    usd = asked["cost"]["perHour"] if asked else None
    return {
        "gpus": plan["replicas"] * plan["gpusPerReplica"],
        "split": plan["gpusPerReplica"],
        "usd": usd,
    }


@main.command()
@OUT
@click.option("--every", default=1, show_default=True, help="Each so many-th invocation.")
def sweep(out: Path, every: int) -> None:
    """Size every split of each invocation by itself."""
    for each in itertools.islice(invocations(), 0, None, every):
        known = read(out).get(each.line, {})
        if each.changes is None or "swept_usd" in known or known.get("exit_code") not in {0, 2}:
            continue
        began_s = time.process_time()
        request = request_of(each.changes)
        found = sorted(swept(request))
        taken_s = round(time.process_time() - began_s, 1)
        append(out, {"line": each.line, "swept_usd": found[:3], "swept_s": taken_s})


def request_of(changes: tuple[tuple[str, object], ...]) -> SizingRequest:
    """Return what the options ask for, with no bound of replicas."""
    spec = parse(manifest_of_changes(changes).resource).spec
    return replace(ask(spec, look_up(spec, built_in_gpus())), max_replicas=None)


def swept(request: SizingRequest) -> Iterator[tuple[int, str, int]]:
    """Yield (USD per hour, split, replicas) of every split within a node that serves."""
    for split in splits(request.gpu.gpus_per_node):
        try:
            check_parallelism(request.shape, request.weights, split)
            found = size_with(request, split)
        except (SizingError, InvalidParallelismError):
            continue
        has_no_price, amount = cost_of(found)
        yield math.inf if has_no_price else cents(amount), str(split), found.replicas


def splits(most_gpus: int) -> Iterator[Parallelism]:
    """Yield every tensor x pipeline x data size of at most so many GPUs, and shared contexts."""
    sizes = range(1, most_gpus + 1)
    for tensor, pipeline, data in itertools.product(sizes, repeat=3):
        if tensor * pipeline * data <= most_gpus:
            for context in {1, tensor}:
                yield Parallelism(tensor=tensor, pipeline=pipeline, data=data, context=context)


def read(out: Path) -> dict[str, dict[str, object]]:
    """Return what is known of each command."""
    known: dict[str, dict[str, object]] = {}
    for line in out.read_text().splitlines() if out.exists() else ():
        row = json.loads(line)
        known.setdefault(row["line"], {}).update(row)
    return known


def append(out: Path, row: dict[str, object]) -> None:
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    click.echo(json.dumps(row), err=True)


@main.command()
@OUT
def page(out: Path) -> None:
    """Write the table."""
    known = read(out)
    asked = [(each, known[each.line]) for each in invocations() if each.line in known]
    rows = [row_of(each.line, answer) for each, answer in asked]
    compared = [ratio for _, answer in asked if (ratio := ratio_of(answer)) is not None]
    cpu_s = sorted(float(str(answer["cpu_s"])) for _, answer in asked)
    dearer = sum(each > 1 for each in compared)
    PAGE.write_text(
        "# What the first answer takes\n\n"
        "Written by `python tests/bench/first_answers.py page`, which says how. USD: an hour of\n"
        "the plan; sweep: of the cheapest split within a node, each split sized alone.\n\n"
        f"{count_of(len(asked), 'command')}; {count_of(len(compared), 'sweep')}: {dearer} take "
        f"more USD than the sweep, at most {max(compared, default=math.nan):.2f} times as many. "
        f"CPU: median {cpu_s[len(cpu_s) // 2]:.2f} s, most {cpu_s[-1]:.1f} s.\n\n"
        "| command | exit | CPU, s | GPUs | USD | sweep | over the sweep | answer |\n"
        "|---|---:|---:|---:|---:|---:|---:|---|\n" + "".join(rows)
    )


def ratio_of(answer: dict[str, object]) -> float | None:
    usd, found = answer.get("usd"), answer.get("swept_usd")
    return (
        usd / found[0][0] if isinstance(usd, float) and isinstance(found, list) and found else None
    )


def row_of(line: str, answer: dict[str, object]) -> str:
    found = answer.get("swept_usd")
    best = f"{found[0][0]} ({found[0][1]})" if isinstance(found, list) and found else ""
    ratio = ratio_of(answer)
    cells = (
        f"`{line}`",
        answer.get("exit_code", ""),
        answer.get("cpu_s", ""),
        answer.get("gpus") or answer.get("split") or "",
        answer.get("usd") or "",
        best,
        f"{ratio:.2f}" if ratio else "",
        str(answer.get("answer", ""))[:110].replace("|", "/"),
    )
    return "| " + " | ".join(str(each) for each in cells) + " |\n"


if __name__ == "__main__":
    main()
