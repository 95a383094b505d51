"""What ``tonnage calibrate`` knows before it sends anything, and what it refuses by then."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tonnage.cli.answers.calibrating import Subject
from tonnage.cli.answers.subjects import Named, subject_of
from tonnage.cli.commands.calibrate import CalibrateOptions
from tonnage.cli.console import Failure, failing, remark
from tonnage.cli.load.endpoint import Endpoint, ServedModel, endpoint_at, probing
from tonnage.cli.load.watch import Bounds
from tonnage.cli.read.calibration import check_target
from tonnage.estimate.calibration_file import key_of
from tonnage.replay.traces import Trace, TraceError, notes_of, read_trace

UNKNOWN_CONTEXT: Final = 4096
"""Where the server does not say what it takes; a sweep needs little of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be measured, and where."""

    options: CalibrateOptions
    endpoint: Endpoint
    served: ServedModel
    subject: Subject
    trace: Trace | None

    @property
    def bounds(self) -> Bounds:
        return Bounds(
            max_seconds=self.options.max_seconds,
            max_ttft_s=self.options.max_ttft_s,
            may_share=self.options.may_share,
            num_engines=self.options.data,
        )


def plan_of(options: CalibrateOptions) -> Plan:
    """Ask the endpoint what it is, and hold that against what the user says.

    Raises:
        Failure: they differ, a name is unknown, or the trace or the target is no good.
    """
    trace = None if options.trace_file is None else _trace(options.trace_file)
    endpoint = endpoint_at(options.url or "", options.api_key_file)
    models, said = asyncio.run(_probe_endpoint(endpoint))
    served = _choose_model(endpoint, models, options)
    subject = named_subject(
        options,
        engine_version=_version(endpoint, said, options),
        context_tokens=served.max_model_len or UNKNOWN_CONTEXT,
    )
    return Plan(options=options, endpoint=endpoint, served=served, subject=subject, trace=trace)


def named_subject(
    options: CalibrateOptions, *, engine_version: str, context_tokens: int
) -> Subject:
    """Return the engine that the options name, once its calibration may be written.

    Raises:
        Failure: a name is unknown, or the target is a calibration of another engine.
    """
    subject = subject_of(
        Named(
            model=options.model,
            gpu=options.gpu,
            weights=options.weights,
            kv_cache=options.kv_cache,
            parallelism=options.parallelism,
            model_config=options.catalog.config(),
        ),
        options.catalog.gpus(),
        engine_version=engine_version,
        context_tokens=context_tokens,
    )
    if options.target is not None:
        check_target(options.target, key_of(subject.request, subject.parallelism))
    return subject


def _trace(path: Path) -> Trace:
    with failing(TraceError, where="--trace "):
        trace = read_trace(path)
    for note in notes_of(trace):
        remark(f"Note: {path}: {note}")
    return trace


async def _probe_endpoint(endpoint: Endpoint) -> tuple[tuple[ServedModel, ...], str | None]:
    async with probing(endpoint) as probe:
        return await probe.models(), await probe.version()


def _choose_model(
    endpoint: Endpoint, models: tuple[ServedModel, ...], options: CalibrateOptions
) -> ServedModel:
    name = options.served_model_name or options.model
    found = next((each for each in models if name in (each.id, each.root)), None)
    if found is None:
        there = ", ".join(each.id for each in models) or "nothing"
        raise Failure(
            f"{endpoint.url} serves {there}, not {name}; where it has another name for the model, "
            "give it with --served-model-name"
        )
    return found


def _version(endpoint: Endpoint, said: str | None, options: CalibrateOptions) -> str:
    given = options.engine_version
    if said is None and given is None:
        raise Failure(f"{endpoint.url}/version does not say it: give --engine-version")
    if said and given and said.lstrip("v").split(".")[:2] != given.lstrip("v").split(".")[:2]:
        raise Failure(f"--engine-version is {given}, {endpoint.url} says {said}")
    return given or said or ""
