"""What ``tonnage calibrate`` knows before it sends anything, and what it refuses by then."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from tonnage.api.group import KIND
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.engine import parse_version
from tonnage.catalog.gpu import CatalogError, Gpu, UnknownModelError
from tonnage.cli.answers.calibrating import Subject
from tonnage.cli.commands.calibrate import CalibrateOptions
from tonnage.cli.console import Failure
from tonnage.cli.load.endpoint import Endpoint, ServedModel, endpoint_at, probing
from tonnage.cli.read.calibration import check_target
from tonnage.estimate.calibration_file import key_of
from tonnage.manifests.names import API_VERSION
from tonnage.replay.traces import Trace
from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.rules import check_parallelism
from tonnage.sizing.request import SizingRequest, ask, look_up
from tonnage.sizing.split import Parallelism
from tonnage.units import count_of

LEAST_CONTEXT: Final = 64
"""Tokens; a sweep has no room in less."""
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


def plan_of(options: CalibrateOptions) -> Plan:
    """Ask the endpoint what it is, and hold that against what the user says.

    Raises:
        Failure: they differ, a name is unknown, or the trace or the target is no good.
    """
    file = options.trace_file
    trace = None if file is None else options.traces.read(file, where="--trace ")
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
    config = options.catalog.config()
    subject = subject_of(
        {"id": options.model, "weights": options.weights, "kvCache": options.kv_cache},
        options.parallelism,
        options.catalog.gpus(),
        gpu=options.gpu,
        engine_version=engine_version,
        context_tokens=context_tokens,
        config=config,
    )
    if options.target is not None:
        check_target(options.target, key_of(subject.request, subject.parallelism))
    return subject


def subject_of(  # noqa: PLR0913  (what a user says of an engine)
    model: Mapping[str, str],
    parallelism: Parallelism,
    gpus: Mapping[str, Gpu],
    *,
    gpu: str,
    engine_version: str,
    context_tokens: int,
    config: str | None = None,
) -> Subject:
    """Return what is measured; ``model``: as ``spec.model`` has it, ``config``: its config.json.

    Raises:
        Failure: a name is unknown, or the engine refuses the split.
    """
    if context_tokens < LEAST_CONTEXT:
        raise Failure(f"max_model_len is {context_tokens}: a sweep needs {LEAST_CONTEXT} at least")
    try:
        major, minor = parse_version(engine_version)
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": "calibration"},
            "spec": {
                "model": model,
                "hardware": {"gpu": gpu},
                "contextLength": context_tokens,
                "scaling": {"maxReplicas": 1},
                "engine": {"version": f"{major}.{minor}"},
            },
        }
        spec = parse_model_deployment(manifest).spec
        request = ask(spec, look_up(spec, gpus, model_config=config))
        check_parallelism(request.shape, request.weights, parallelism)
        _check_node(request, parallelism)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Failure(f"{where}: {first['msg']}") from error
    except UnknownModelError as error:
        raise Failure(f"{error}: give it with --model-config") from error
    except (CatalogError, SizingError) as error:
        raise Failure(str(error)) from error
    return Subject(request=request, parallelism=parallelism)


def _check_node(request: SizingRequest, split: Parallelism) -> None:
    """Refuse ranks whose exchange is between nodes: constants would make up for its link.

    Raises:
        Failure: they are over several nodes.
    """
    if request.crosses_nodes(split):
        node = count_of(request.gpu.gpus_per_node, "GPU")
        raise Failure(f"--data-parallel {split.data} is over several nodes, each of {node}")


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
