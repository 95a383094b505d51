"""The run of ``tonnage replay``: read, plan, simulate in several processes, show."""

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
from tonnage.cli.commands.output_files import (
    check_page,
    search_progress,
    single_model,
    write_page,
)
from tonnage.cli.commands.output_formats import serialize
from tonnage.cli.commands.replay import ReplayOptions
from tonnage.cli.commands.replay_requests import requests_asked
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
from tonnage.cli.results.progress import BETWEEN_S, PATIENCE_S, Progress
from tonnage.cli.results.replays import Job, ReplayQuestion, Replays, run_job
from tonnage.cli.text.replay import replay_report
from tonnage.control.input.state import AUTO
from tonnage.control.input.times import rfc3339
from tonnage.replay.cluster import EPOCH_S
from tonnage.replay.evaluation import promised_share, unjudged_targets
from tonnage.replay.policies import PolicyResult
from tonnage.replay.policy import default_policies
from tonnage.replay.scenario import ReplayError, first_plan
from tonnage.sizing.cost import gpu_hour
from tonnage.sizing.expected import slo_of
from tonnage.termination import process_pool
from tonnage.units import format_s

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
    asked = requests_asked(options, deployment)
    gpus = options.prices.over(built_in_gpus())
    spec = deployment.spec
    with failing(CatalogError, where=f"{resource.at('spec.hardware.gpu')}: "):
        gpu = find_gpu(spec.hardware.gpu, gpus)
    try:
        plan = first_plan(deployment, gpus)
    except (ReplayError, CatalogError) as error:
        raise Failure(f"{gpu.name}: {error}", EXIT_INFEASIBLE) from error
    return ReplayQuestion(
        source=asked.source,
        requests=asked.requests,
        ran_pods=asked.ran_pods,
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
