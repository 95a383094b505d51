"""The run of ``tonnage calibrate``: ask, sweep, replay, fit, write, show."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp
import click

from tonnage.catalog.engine import batch_defaults
from tonnage.cli.answers.calibrating import (
    Calibrated,
    Subject,
    calibrate,
    calibrated_by_runs,
    calibration_of,
    hopes_of,
)
from tonnage.cli.answers.loads import WIDEST, Room, loads_for
from tonnage.cli.answers.replayed import Replayed, Targets, compare_with_model
from tonnage.cli.commands.calibrate import CalibrateOptions
from tonnage.cli.commands.calibration_plan import (
    UNKNOWN_CONTEXT,
    Plan,
    named_subject,
    plan_of,
)
from tonnage.cli.commands.forms import serialize
from tonnage.cli.console import NO, Failure, failing, output, remark, show
from tonnage.cli.load.endpoint import probing
from tonnage.cli.load.engine_page import EnginePage
from tonnage.cli.load.replaying import ReplayLimits, Sent, replay
from tonnage.cli.load.stream import Prompts, Streamer
from tonnage.cli.load.sweep import Load, LoadMeasurement, sweep
from tonnage.cli.load.watch import Bounds, EngineWatch, StoppedError
from tonnage.cli.read.bench_results import read_runs
from tonnage.cli.read.calibration import write_calibration
from tonnage.cli.text.calibration import calibration
from tonnage.estimate.calibration_file import CalibrationFile, ReportedCache
from tonnage.replay.traces import Trace
from tonnage.sizing.errors import SizingError
from tonnage.sizing.request import Flags
from tonnage.units import count_of

DRAINING_SHARE: Final = 0.2
"""Of the time left for a replay, kept for requests in flight when sending ends."""
CONNECT_S: Final = 10
NO_METRICS: Final = (
    "/metrics is missing: neither other traffic, nor the prefix cache, nor several replicas can be "
    "ruled out, and the KV tokens are unknown"
)

UNSAID: Final = (
    "a result file says neither other traffic nor prompts from the prefix cache: none is assumed; "
    "times to first token include the network"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What came of it."""

    measured: Sequence[LoadMeasurement]
    page: EnginePage | None
    """Before any load."""
    num_requests: int
    remarks: tuple[str, ...]
    sent: Sent | None


def run(options: CalibrateOptions) -> None:
    """Measure, write and show.

    Raises:
        Failure: refused or stopped; nothing was written.
    """
    if options.results:
        subject, file = _from_results(options)
        served = None
    else:
        subject, file, served = _from_server(options)
    target = options.target
    if target is not None:
        write_calibration(target, file)
    _show(file, options.form, subject, served)
    remark(
        "No file was named with --save: nothing was written"
        if target is None
        else f"Wrote {target}"
    )


def _from_server(options: CalibrateOptions) -> tuple[Subject, CalibrationFile, Replayed | None]:
    """Measure a live engine."""
    plan = plan_of(options)
    try:
        seen = asyncio.run(_measure(plan))
    except StoppedError as stopped:
        raise Failure(f"{stopped}. Nothing was written", NO) from stopped
    found = calibrate(plan.subject, seen.measured)
    served = None if seen.sent is None else _compare_replay(plan, found, seen, seen.sent)
    return plan.subject, _file(plan, found, seen, served), served


def _from_results(options: CalibrateOptions) -> tuple[Subject, CalibrationFile]:
    """Fit to the runs of other load generators.

    Raises:
        Failure: a file is no result, or of another model.
    """
    runs = [run for path in options.results for run in read_runs(path)]
    for run in runs:
        if run.model not in {None, options.model}:
            raise Failure(f"--result {run.source}: of model {run.model}, not {options.model}")
    if not runs:
        raise Failure("--result: there are no runs in these files")
    longest = math.ceil(max(run.prompt_tokens + run.output_tokens for run in runs))
    subject = named_subject(
        options,
        engine_version=options.engine_version or "",
        context_tokens=max(UNKNOWN_CONTEXT, longest),
    )
    request = subject.request
    batched = (
        options.max_num_batched_tokens
        or batch_defaults(request.gpu, request.engine.minor).max_num_batched_tokens
    )
    with failing(SizingError):
        found = calibrated_by_runs(subject, runs, max_batched_tokens=batched)
    at_s = max((run.at_s for run in runs if run.at_s), default=time.time())
    file = calibration_of(
        found,
        measured_at_s=at_s,
        num_requests=sum(run.num_requests for run in runs),
        has_metrics=False,
        remarks=(f"from {', '.join(options.results)}; {UNSAID}",),
    )
    return subject, file


async def _measure(plan: Plan) -> _Seen:
    options = plan.options
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=CONNECT_S, sock_read=options.max_ttft_s
    )
    bounds = Bounds(
        max_ttft_s=options.max_ttft_s,
        may_share=options.may_share,
        num_engines=options.data,
    )
    async with (
        probing(plan.endpoint) as probe,
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        streamer = Streamer(
            session,
            plan.endpoint,
            model=plan.served.id,
            prompts=Prompts(vocab_size=plan.subject.request.shape.vocab_size),
        )
        return await _swept(plan, streamer, EngineWatch(probe, bounds))


async def _swept(plan: Plan, streamer: Streamer, watch: EngineWatch) -> _Seen:
    begun_s, max_seconds = time.monotonic(), plan.options.max_seconds
    try:
        async with asyncio.timeout(max_seconds):
            await watch.begin()
            if watch.first is None:
                remark(f"Note: {NO_METRICS}")
            loads = _loads(plan, watch.first)
            measured, early = await sweep(loads, streamer, watch, tell=remark)
    except TimeoutError as error:
        raise StoppedError(
            f"the sweep was not done within --max-seconds {max_seconds:g}: raise it, or lower "
            "--max-concurrency"
        ) from error
    if not any(each.load.kind == "decode" for each in measured):
        raise StoppedError(f"no batch was measured: {early}")
    sent = None
    if plan.trace is not None:
        left_s = max_seconds - (time.monotonic() - begun_s)
        sent = await _replay(plan, plan.trace, streamer, watch, left_s=left_s)
    return _Seen(
        measured=measured,
        page=watch.first,
        num_requests=watch.num_sent,
        remarks=tuple(_remarks(watch, early)),
        sent=sent,
    )


def _loads(plan: Plan, page: EnginePage | None) -> tuple[Load, ...]:
    options, subject = plan.options, plan.subject
    kv_tokens = page.kv_tokens if page else None
    with failing(SizingError):
        model = subject.model
    room = Room(
        context_tokens=subject.request.context_tokens,
        max_concurrency=options.max_concurrency or options.max_num_seqs or WIDEST,
        max_seconds=options.max_seconds,
        max_ttft_s=options.max_ttft_s,
        kv_tokens=None if kv_tokens is None else kv_tokens * options.data,
    )
    hopes = hopes_of(model)
    loads = loads_for(room, hopes)
    about_s = sum(map(hopes.seconds_of, loads))
    remark(
        f"{len(loads)} loads, about {about_s:.0f} s by the prior, {options.max_seconds:g} at most"
    )
    return loads


async def _replay(
    plan: Plan, trace: Trace, streamer: Streamer, watch: EngineWatch, *, left_s: float
) -> Sent:
    if left_s <= 1:
        raise StoppedError(f"--max-seconds {plan.options.max_seconds:g} leaves nothing for --trace")
    sent = await replay(
        trace,
        streamer,
        watch,
        limits=ReplayLimits(
            sending_s=(1 - DRAINING_SHARE) * left_s,
            draining_s=DRAINING_SHARE * left_s,
            max_model_len=plan.subject.request.context_tokens,
        ),
        tell=remark,
    )
    if not sent.ended:
        asked = count_of(len(trace), "request")
        raise StoppedError(f"none of the {asked} of --trace was answered in time")
    await watch.check()
    return sent


def _remarks(watch: EngineWatch, early: str) -> list[str]:
    found = [early] if early else []
    if watch.first is None:
        found.append(NO_METRICS)
    if watch.others:
        served = ("request of others was served", "requests of others were served")
        found.append(f"{count_of(f'{watch.others:.0f}', *served)} meanwhile (--yes)")
    return found


def _compare_replay(plan: Plan, found: Calibrated, seen: _Seen, sent: Sent) -> Replayed:
    options, request = plan.options, plan.subject.request
    page = seen.page
    utilization = page.gpu_memory_utilization if page else None
    defaults = batch_defaults(request.gpu, request.engine.minor)
    batched = (
        options.max_num_batched_tokens
        or request.max_num_batched_tokens
        or defaults.max_num_batched_tokens
    )
    seqs = min(options.max_num_seqs or defaults.max_num_seqs, batched)
    flags = Flags(
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        gpu_memory_utilization=utilization or request.engine.constants.gpu_memory_utilization,
        parallelism=plan.subject.parallelism,
    )
    if options.max_num_seqs is None:
        remark(f"Note: --max-num-seqs is not given; {seqs} is taken for the prediction")
    return compare_with_model(
        sent,
        found,
        flags,
        kv_tokens=page.kv_tokens if page else None,
        limits=Targets(ttft_s=options.ttft_limit_s, tpot_s=options.tpot_limit_s),
    )


def _file(plan: Plan, found: Calibrated, seen: _Seen, served: Replayed | None) -> CalibrationFile:
    page = seen.page
    cache = None
    if page is not None and page.kv_tokens is not None:
        cache = ReportedCache(
            tokens=page.kv_tokens,
            max_model_len=plan.subject.request.context_tokens,
            gpu_memory_utilization=page.gpu_memory_utilization,
        )
    file = calibration_of(
        found,
        measured_at_s=time.time(),
        num_requests=seen.num_requests,
        has_metrics=page is not None,
        cache=cache,
        remarks=seen.remarks,
    )
    if served is None:
        return file
    return file.model_copy(update={"validation": served.validation(file.date)})


def _show(file: CalibrationFile, form: str, subject: Subject, served: Replayed | None) -> None:
    if form == "text":
        show(output(is_wide=True), calibration(file, subject.request.speed, served))
        return
    content = file.to_dict()
    if served is not None:
        content["replay"] = served.to_dict()
    click.echo(serialize(content, form))
