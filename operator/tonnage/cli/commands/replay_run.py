"""The run of ``tonnage replay``: read, plan, simulate in several processes, show."""

import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    Future,
    wait,
)
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import Spec
from tonnage.catalog.gpu import (
    CatalogError,
    UnknownModelError,
    built_in_gpus,
    find_gpu,
)
from tonnage.catalog.models import built_in_model
from tonnage.cli.commands.options import MOST_LAST_S
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
from tonnage.cli.commands.output_formats import serialize
from tonnage.cli.commands.replay import ReplayOptions
from tonnage.cli.console import (
    EXIT_INFEASIBLE,
    OK,
    UNEXPECTED,
    Failure,
    failing,
    output,
    print_error,
    remark,
    show,
)
from tonnage.cli.read.manifest import ManifestObject, load, parse
from tonnage.cli.results.replays import Job, ReplayQuestion, Replays, run_job
from tonnage.cli.text.replay import replay_report
from tonnage.control.input.state import AUTO
from tonnage.control.input.times import rfc3339
from tonnage.replay.cluster import EPOCH_S
from tonnage.replay.evaluation import promised_share, unjudged_targets
from tonnage.replay.measured_traffic import CountedError, trace_of
from tonnage.replay.policies import PolicyResult
from tonnage.replay.policy import default_policies
from tonnage.replay.simulation import ReplayError, SyntheticWorkload, TraceWorkload, first_plan
from tonnage.replay.trace_rows import MOST_REQUESTS, TraceError
from tonnage.replay.traces import Trace, duration_of, notes_of, read_trace, window_of
from tonnage.replay.traffic import SHAPES
from tonnage.sizing.cost import gpu_hour
from tonnage.sizing.expected import slo_of
from tonnage.sizing.request import ask, look_up
from tonnage.termination import process_pool
from tonnage.units import DAY_S, MILLION, count_of, format_s, significant

RequestSource = tuple[str, TraceWorkload | SyntheticWorkload, float | None]
"""Where requests come from in words, the requests, and what served them where that was counted."""


def requests_asked(options: ReplayOptions, deployment: ModelDeployment) -> RequestSource:
    """Return what is to be replayed.

    Raises:
        Failure: none or several sources are given, or the one given has no requests.
    """
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
    rate = options.times * _rate(deployment)
    return SyntheticWorkload(shape=SHAPES[shape], requests_per_s=rate)


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


def _rate(deployment: ModelDeployment) -> float:
    with failing(CatalogError, where=f"{deployment.name}: "):
        request = ask(deployment.spec, look_up(deployment.spec, built_in_gpus()))
    rate = request.demand.usual.requests_per_s
    if rate is None:
        raise Failure("--shape needs a rate in spec.demand, such as requestsPerSecond")
    return rate


def _of_fleet(options: ReplayOptions, deployment: ModelDeployment, scaled: str) -> RequestSource:
    """Draw a trace of what Prometheus counted."""
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
    """Simulate and show.

    Raises:
        Failure: the input is not valid, or the GPU class cannot serve it.
    """
    check_page(options.page_file, options.form)
    resource = single_model(load(options.names), options.names, command="replay")
    question = _question(options, resource)
    outcomes = _outcomes(question.jobs, options.num_processes, search_progress())
    found = Replays(question=question, outcomes=tuple(outcomes))
    if options.page_file != "-":
        _print(found, options.form)
    if options.page_file is not None:
        from tonnage.cli.page.pictures import replay_page  # noqa: PLC0415  (needs an extra)

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
    gpus = options.prices.over(built_in_gpus())
    spec = deployment.spec
    with failing(CatalogError, where=f"{resource.at('spec.hardware.gpu')}: "):
        gpu = find_gpu(spec.hardware.gpu, gpus)
    try:
        plan = first_plan(deployment, gpus)
    except (ReplayError, CatalogError) as error:
        raise Failure(f"{gpu.name}: {error}", EXIT_INFEASIBLE) from error
    return ReplayQuestion(
        source=source,
        requests=requests,
        ran_pods=ran_pods,
        model=deployment,
        planned=plan,
        hour=gpu_hour(gpu, plan.flags.parallelism.num_gpus),
        starts_s=options.starts_s,
        policies=options.policies or default_policies(spec),
        num_seeds=options.num_seeds,
        target=promised_share(slo_of(spec)) if options.target is None else options.target,
        speed=options.speed,
        gpus=gpus,
    )


def _outcomes(jobs: list[Job], num_processes: int, progress: Progress) -> list[PolicyResult]:
    """Run all jobs, and return what came of them in their order."""
    with process_pool(min(num_processes, len(jobs))) as pool:
        futures = [pool.submit(run_job, job) for job in jobs]
        _watch(set(futures), progress)
        return [future.result() for future in futures]


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
