"""Where the requests of ``tonnage replay`` come from: a file, a shape, or Prometheus."""

import math
from dataclasses import dataclass
from pathlib import Path

from tonnage.api.objects import ModelDeployment
from tonnage.catalog.gpu import CatalogError, built_in_gpus
from tonnage.cli.commands.output_files import search_progress, write_trace
from tonnage.cli.commands.replay import ReplayOptions
from tonnage.cli.commands.traffic import MOST_LAST_S
from tonnage.cli.console import Failure, failing, remark
from tonnage.replay.measured_traffic import CountedError
from tonnage.replay.scenario import SyntheticWorkload, TraceWorkload
from tonnage.replay.shapes import SHAPES
from tonnage.replay.trace_file import MOST_REQUESTS, TraceError
from tonnage.replay.trace_sampling import duration_of, window_of
from tonnage.replay.trace_synthesis import trace_of
from tonnage.replay.traces import Trace, notes_of, read_trace
from tonnage.sizing.request import ask, look_up
from tonnage.units import DAY_S, MILLION, count_of, significant


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSource:
    """Requests, where they come from in words, and what served them where that was counted."""

    source: str
    requests: TraceWorkload | SyntheticWorkload
    ran_pods: float | None = None


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
        return RequestSource(
            source=f"shape {shape}{scaled}", requests=_of_shape(shape, options, deployment)
        )
    if file is not None:
        return RequestSource(
            source=f"{file.name}{scaled}",
            requests=_of_trace(read(file, options.traffic.time_unit), options),
        )
    return _of_fleet(options, deployment, scaled)


def _of_shape(shape: str, options: ReplayOptions, deployment: ModelDeployment) -> SyntheticWorkload:
    if options.window_s is not None:
        raise Failure("--window is a part of a TRACE: a --shape has none")
    if options.saved_trace is not None:
        raise Failure("--save-trace writes a trace: a --shape differs with each seed")
    rate = _rate(deployment)
    return SyntheticWorkload(shape=SHAPES[shape], requests_per_s=rate, times=options.times)


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
    days = significant(duration_s / DAY_S)
    return RequestSource(
        source=f"{options.traffic.prometheus_url}, {days} days to now{scaled}",
        requests=_of_trace(trace, options, duration_s),
        ran_pods=found.mean_pods if is_whole else None,
    )
