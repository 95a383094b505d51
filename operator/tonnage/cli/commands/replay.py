"""``tonnage replay``: what policies would have done with a trace. Needs no cluster."""

import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import Spec
from tonnage.catalog.gpu import CatalogError, UnknownModelError, built_in_gpus, find_gpu
from tonnage.catalog.models import built_in_model
from tonnage.cli.commands.options import (
    FILE,
    MOST_LAST_S,
    TrafficOptions,
    argument,
    files_option,
    format_option,
    option,
    page_option,
    parsed,
    set_option,
    takes,
)
from tonnage.cli.commands.output_files import (
    BETWEEN_S,
    PATIENCE_S,
    Progress,
    check_page,
    search_progress,
    single_model,
    write_page,
    write_trace,
)
from tonnage.cli.commands.prices import PriceOptions, with_prices
from tonnage.cli.console import (
    EXIT_INFEASIBLE,
    INTERRUPTED,
    OK,
    UNEXPECTED,
    Failure,
    failing,
    number_in,
    output,
    print_error,
    remark,
    serialize,
    show,
)
from tonnage.cli.read.manifest import ManifestObject, load, parse
from tonnage.cli.read.spec_overrides import change_of, with_changes
from tonnage.cli.results.replays import PERCENT, ReplayQuestion, Replays
from tonnage.cli.text.replay import replay_report
from tonnage.control.input.state import AUTO
from tonnage.control.input.times import rfc3339
from tonnage.replay.cluster import EPOCH_S
from tonnage.replay.evaluation import promised_share, unjudged_targets
from tonnage.replay.measured_traffic import CountedError, trace_of
from tonnage.replay.policies import PolicyResult, Scenario
from tonnage.replay.policy import (
    DEFAULT,
    Policy,
    UnknownPolicyError,
    default_policies,
    descriptions,
    policy_of,
)
from tonnage.replay.simulation import ReplayError, SyntheticWorkload, TraceWorkload, first_plan
from tonnage.replay.trace_rows import MOST_REQUESTS, TraceError
from tonnage.replay.traces import Trace, duration_of, notes_of, read_trace, window_of
from tonnage.replay.traffic import SHAPES
from tonnage.sizing.cost import gpu_hour
from tonnage.sizing.expected import slo_of
from tonnage.sizing.request import ask, look_up
from tonnage.termination import process_pool
from tonnage.units import (
    DAY_S,
    HOUR_S,
    MILLION,
    count_of,
    format_s,
    seconds,
    significant,
)

LEAST_TARGET: Final = 0.5
SPEEDS: Final = (0.1, 10.0)
MOST_TIMES: Final = 1e4
DRAWN: Final = "drawn"
START_UPS_S: Final = (1.0, 2 * HOUR_S)
"""Longer than that no image and no weights take; each is simulated from before the first request.
"""

HELP: Final = """Simulate autoscalers on a trace of requests. Needs no cluster.

Runs the operator's own decisions, and models of other autoscalers, against simulated engines on the
same arrivals, with cold starts, scrapes and draining pods. Prints, for each policy, GPU-hours and
their cost, the share of requests within the SLO, the worst hour, and how often it scaled, relative
to the smallest constant number of replicas that meets the target (best-static). All policies start
with the replicas that Tonnage would start for spec.demand.

TRACE is a csv, csv.gz, jsonl, jsonl.gz or parquet file with arrival_s, prompt_tokens,
output_tokens, or in the format of Azure, BurstGPT, Mooncake or Qwen-Bailian. Times count from its
first request. The output names the unit of its times and the columns that are not used.
Instead of a file, --prometheus generates a trace from your fleet's metrics, with its requests per
minute and its lengths per ten minutes, and prints the GPU-hours of the fleet itself too.

\b
Examples:
  tonnage replay trace.csv -f model.yaml
  tonnage replay trace.csv -f model.yaml --policy tonnage,static:6
  tonnage replay trace.parquet -f model.yaml --window 0h-48h --scale 0.25 \\
    --html replay.html
  tonnage replay -f model.yaml --shape step --start-up 240s,60s
  tonnage replay -f model.yaml --prometheus http://localhost:9090 --last 14d
  tonnage replay trace.csv -f model.yaml --speed 0.85     slower engines
  tonnage replay trace.csv -f model.yaml --set engine.admission=inTime

Exit codes: 0 simulated; 2 the GPU class cannot serve it; 3 invalid input; 4 Prometheus does not
answer; 130 Ctrl-C; 1 unexpected error.
"""


def _policies(
    context: click.Context, _: click.Parameter, values: tuple[str, ...]
) -> tuple[Policy, ...]:
    texts = [part.strip() for value in values for part in value.split(",")]
    if "list" in texts:
        formatter = context.make_formatter()
        formatter.write_dl(list(descriptions().items()))
        click.echo(formatter.getvalue(), nl=False)
        context.exit()
    try:
        sys.path.append(str(Path.cwd()))  # where MODULE:CLASS of one's own is looked for, last
        return tuple(dict.fromkeys(map(policy_of, texts)))
    except UnknownPolicyError as error:
        raise click.BadParameter(str(error)) from error


def _starts(value: str) -> tuple[float, ...]:
    found = tuple(dict.fromkeys(seconds(part.strip()) for part in value.split(",")))
    low_s, high_s = START_UPS_S
    if not all(low_s <= start_s <= high_s for start_s in found):
        raise ValueError(f"{value!r} is not from {low_s:g}s to {high_s / HOUR_S:g}h")
    return found


def _window(value: str) -> tuple[float, float]:
    first, dash, last = value.partition("-")
    try:
        begins_s = 0.0 if first.strip() in {"0", "0s", "0m", "0h"} else seconds(first.strip())
        ends_s = seconds(last.strip())
    except ValueError as error:
        raise ValueError(f"{value!r} is not a time like 0h-48h: {error}") from error
    if not dash or begins_s >= ends_s:
        raise ValueError(f"{value!r} ends before it begins")
    return begins_s, ends_s


def _target(value: str) -> float:
    share = number_in(value.removesuffix("%")) / PERCENT
    if not LEAST_TARGET <= share <= 1:
        raise ValueError(f"{value!r} is not a share from 50% to 100%")
    return share


def _speed(value: str) -> float | None:
    if value == DRAWN:
        return None
    low, high = SPEEDS
    factor = number_in(value)
    if not low <= factor <= high:
        raise ValueError(f"{value!r} is neither 'drawn' nor from {low:g} to {high:g}")
    return factor


def _times(value: float) -> float:
    if not 0 < value <= MOST_TIMES:
        raise ValueError(f"{value} is not above 0 and up to {MOST_TIMES:g}")
    return value


def _count_option(name: str, default: int, help_text: str) -> Any:
    return option(name, type=click.IntRange(min=1, max=100), default=default, help=help_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    # fmt: off
    trace_file: Path | None = argument(metavar="[TRACE]", required=False, type=FILE)
    names: tuple[str, ...] = files_option()
    settings: tuple[str, ...] = set_option("Any field of the spec, such as scaling.maxReplicas=30")
    shape: str | None = option("--shape", type=click.Choice(list(SHAPES)), metavar="SHAPE",
        help="Synthetic requests instead of a trace, at multiples of the rate in spec.demand. "
        + "; ".join(f"{name}: {each.summary}" for name, each in SHAPES.items()) + ".")
    traffic: TrafficOptions
    saved_trace: Path | None = option("--save-trace", metavar="FILE.csv[.gz]", type=FILE,
        help="Write the requests, before --scale, as a trace that replay can read.")
    policies: tuple[Policy, ...] = option("--policy", multiple=True, metavar="NAME[:KNOB][,...]",
        is_eager=True, callback=_policies,
        help=f"What to compare; may be repeated. Known are {', '.join(descriptions())}, the "
        f"last a class of your own; 'list' says what each is. Default: {','.join(DEFAULT)}, "
        "without in-time where the spec has it, or no TTFT target.")
    starts_s: tuple[float, ...] = option("--start-up", metavar="DURATION[,...]", default="240s",
        callback=parsed(_starts),
        help="Mean time from creating a replica to Ready, each of them a case; 25 % to either "
        "side.")
    num_seeds: int = _count_option(
        "--seeds", 3, "Draws of cold starts, routes and sampled requests.")
    window_s: tuple[float, float] | None = option("--window", metavar="FROM-TO",
        callback=parsed(_window),
        help="Part of TRACE, such as 0h-48h.")
    times: float = option("--scale", type=float, default=1.0, callback=parsed(_times),
        help="Times as many requests: a random share of TRACE, or copies within 20 s; of a shape "
        "its rate.")
    speed: float | None = option("--speed", metavar="FACTOR|drawn", default="1.0",
        callback=parsed(_speed),
        help="Speed of the engines, as a multiple of the prior; drawn: other constants in each "
        "seed.")
    target: float | None = option("--target", metavar="PERCENT", callback=parsed(_target),
        help="Share of requests that must meet the SLO, as 99%. Default: the highest percentile of "
        "spec.slo.")
    prices: PriceOptions
    num_processes: int = _count_option("--processes", 2, "Runs at a time.")
    form: str = format_option(
        "text", "json", "yaml", more="json and yaml have every seed, and each policy over time.")
    page_file: str | None = page_option()
    # fmt: on


@click.command(help=HELP)
@takes(ReplayOptions)
def replay(*, options: ReplayOptions) -> None:
    try:
        run(options)
    except KeyboardInterrupt:
        print_error("interrupted")
        sys.exit(INTERRUPTED)


RequestSource = tuple[str, TraceWorkload | SyntheticWorkload, float | None]
"""Where requests come from in words, the requests, and what served them where that was counted."""


def requests_asked(options: ReplayOptions, deployment: ModelDeployment) -> RequestSource:
    file, shape, url = options.trace_file, options.shape, options.traffic.prometheus_url
    given = [each for each in (file, shape, url) if each is not None]
    if options.traffic.time_unit is not None and file is None:
        raise Failure("--time-unit is that of a TRACE")
    if len(given) != 1:
        more = ", not several" if given else ""
        raise Failure(f"give a TRACE or a --shape, or --prometheus{more}")
    scaled = "" if options.times == 1 else f" x {options.times:g}"
    if shape is not None:
        return f"shape {shape}{scaled}", _of_shape(shape, options, deployment), None
    if file is not None:
        trace = read(file, options.traffic.time_unit)
        return f"{file.name}{scaled}", _of_trace(trace, options), None
    return _of_fleet(options, deployment, scaled)


def _of_shape(shape: str, options: ReplayOptions, deployment: ModelDeployment) -> SyntheticWorkload:
    if options.window_s is not None:
        raise Failure("--window is a part of a TRACE: a --shape has none")
    if options.saved_trace is not None:
        raise Failure("--save-trace writes a trace: a --shape differs with each seed")
    with failing(CatalogError, where=f"{deployment.name}: "):
        request = ask(deployment.spec, look_up(deployment.spec, built_in_gpus()))
    rate = request.demand.usual.requests_per_s
    if rate is None:
        raise Failure("--shape needs a rate in spec.demand, such as requestsPerSecond")
    return SyntheticWorkload(shape=SHAPES[shape], requests_per_s=options.times * rate)


def read(file: Path, unit: str | None) -> Trace:
    """Read a trace, and say what became of it; once that takes long, how far it is."""
    with failing(TraceError):
        trace = read_trace(file, unit=unit, tell=search_progress().reading(file.name))
    for note in notes_of(trace):
        remark(f"Note: {file}: {note}")
    return trace


def _of_trace(
    trace: Trace, options: ReplayOptions, duration_s: float | None = None
) -> TraceWorkload:
    """``duration_s``: of a trace from its start, where that is known better than by requests."""
    if duration_s is not None and options.window_s is None:
        part = trace
    else:
        window_s = options.window_s or (0.0, math.inf)
        with failing(ValueError, where="--window: "):
            part = window_of(trace, *window_s)
        duration_s = duration_of(trace, *window_s)
    _check_size(part, duration_s, options)
    if options.saved_trace is not None:
        write_trace(options.saved_trace, part)
    return TraceWorkload(trace=part, duration_s=duration_s, times=options.times)


def _check_size(part: Trace, duration_s: float, options: ReplayOptions) -> None:
    """Refuse what takes hours or all memory, such as a trace with one time in another unit."""
    if duration_s > MOST_LAST_S:
        raise Failure(
            f"the trace lasts {significant(duration_s / DAY_S)} days, from its first request to "
            f"its last: at most {MOST_LAST_S / DAY_S:g} are replayed; --window takes a part of it"
        )
    number, requests = len(part) * options.times, count_of(len(part), "request")
    if number > MOST_REQUESTS:
        raise Failure(
            f"{requests} x {options.times:g} are {number / MILLION:.0f} million: at most "
            f"{MOST_REQUESTS / MILLION:g} million are replayed"
        )
    if number < 1:
        raise Failure(f"{requests} x {options.times:g} leave none to judge by")


def _of_fleet(options: ReplayOptions, deployment: ModelDeployment, scaled: str) -> RequestSource:
    found = options.traffic.counted(deployment.namespace, deployment.name)
    if found.model_name not in {None, deployment.spec.model.id}:
        remark(
            f"Note: traffic of {found.model_name}, replayed with the model of the manifest, "
            f"{deployment.spec.model.id}"
        )
    with failing(CountedError, where="--prometheus: "):
        trace = trace_of(found, longest_tokens=deployment.spec.context_length)
    duration_s = found.span.num_steps * found.span.step_s
    is_whole = options.times == 1 and options.window_s is None
    source = f"{options.traffic.prometheus_url}, {significant(duration_s / DAY_S)} days to now"
    requests = _of_trace(trace, options, duration_s)
    return f"{source}{scaled}", requests, found.mean_pods if is_whole else None


SILENT_S: Final = 30.0
"""Between two words on progress where no run ends."""


def run(options: ReplayOptions) -> None:
    check_page(options.page_file, options.form)
    resource = single_model(load(options.names), options.names, command="replay")
    resource = with_changes(resource, tuple(map(change_of, options.settings)))
    question = _question(options, resource)
    jobs = question.jobs
    with process_pool(min(options.num_processes, len(jobs))) as pool:
        futures = [pool.submit(Scenario.outcome_of, *job) for job in jobs]
        _watch(set(futures), search_progress())
        outcomes = tuple(future.result() for future in futures)
    found = Replays(question=question, outcomes=outcomes)
    if options.page_file != "-":
        _print(found, options.form)
    if options.page_file is not None:
        from tonnage.cli.page.timeline import replay_page  # noqa: PLC0415  (needs an extra)

        write_page(options.page_file, replay_page(found))
    for fault in found.faults:
        print_error(f"unexpected in a tick: {fault}. This is a fault of Tonnage")
    sys.exit(UNEXPECTED if found.faults else OK)


def _deployment(resource: ManifestObject) -> ModelDeployment:
    """Return a manifest as the API server would have it, in mode Auto."""
    found = parse(resource)
    for place, why in _unsupported_fields(found.spec):
        raise Failure(f"{resource.at(place)}: {place}: {why}")
    try:
        built_in_model(found.spec.model.id)
    except UnknownModelError as error:
        at = resource.at("spec.model.id")
        raise Failure(f"{at}: {error}, which a replay does not read") from error
    for note in _remarks(found.spec):
        remark(f"Note: {found.name}: {note}")
    scaling = found.spec.scaling.model_copy(update={"mode": AUTO})
    spec = found.spec.model_copy(update={"scaling": scaling})
    return replace(found, uid="replayed", generation=1, spec=spec)


def _unsupported_fields(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield the fields for which nothing can be replayed, and why."""
    if slo_of(spec).is_offline:
        yield "spec.slo", "a replay needs an SLO to judge by"
    if spec.scale_target is not None:
        yield "spec.scaleTarget", "remove it: a replay chooses the flags of engines itself"
    if spec.topology is not None:
        yield "spec.topology", "a replay runs one fleet: take an object of each engine.role"
    if spec.engine is not None and spec.engine.speculative is not None:
        yield "spec.engine.speculative", "a replay runs engines that draft no tokens only"
    if spec.model.config is not None:
        yield "spec.model.config", "a replay takes models of the catalogue only"


def _remarks(spec: Spec) -> Iterator[str]:
    """Yield what is judged or run in another way than the manifest says."""
    yield from unjudged_targets(slo_of(spec))
    if spec.scaling.mode != AUTO:
        yield f"simulated in mode Auto instead of {spec.scaling.mode}"
    if spec.scaling.schedules:
        yield f"spec.scaling.schedules run as if the traffic began at {rfc3339(EPOCH_S)}"


def _question(options: ReplayOptions, resource: ManifestObject) -> ReplayQuestion:
    deployment = _deployment(resource)
    source, requests, ran_pods = requests_asked(options, deployment)
    gpus = with_prices(built_in_gpus(), options.prices)
    spec = deployment.spec
    with failing(CatalogError, where=f"{resource.at('spec.hardware.gpu')}: "):
        gpu = find_gpu(spec.hardware.gpu, gpus)
    try:
        plan = first_plan(deployment, gpus)
    except (ReplayError, CatalogError) as error:
        raise Failure(f"{gpu.name}: {error}", EXIT_INFEASIBLE) from error
    return ReplayQuestion(
        source=source,
        scenario=Scenario(
            model=deployment,
            requests=requests,
            planned=plan,
            target=promised_share(slo_of(spec)) if options.target is None else options.target,
            speed=options.speed,
            gpus=gpus,
        ),
        ran_pods=ran_pods,
        hour=gpu_hour(gpu, plan.flags.parallelism.num_gpus),
        starts_s=options.starts_s,
        policies=options.policies or default_policies(spec),
        num_seeds=options.num_seeds,
    )


def _watch(pending: set[Future[PolicyResult]], progress: Progress) -> None:
    """Wait for all runs, or for one that failed; once that takes long, tell how far they are."""
    total, began_s, reported, speaks_s = len(pending), time.monotonic(), -1, 0.0
    pending = wait(pending, PATIENCE_S, FIRST_EXCEPTION).not_done
    while pending:
        number, lasted_s = total - len(pending), time.monotonic() - began_s
        if number != reported or lasted_s >= speaks_s:
            progress.tell(f"Replaying: {number} of {total} runs done in {format_s(lasted_s)}")
            reported, speaks_s = number, lasted_s + SILENT_S
        ended, pending = wait(pending, BETWEEN_S, FIRST_COMPLETED)
        if any(each.exception() for each in ended):
            return


def _print(found: Replays, form: str) -> None:
    if form != "text":
        click.echo(serialize(found.to_dict(), form))
        return
    console = output()
    for part in replay_report(found, console):
        show(console, part)
