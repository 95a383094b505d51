"""``tonnage plan``: what it takes to serve the models of some manifests. Needs no cluster."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tonnage.cli.commands.options import (
    calibration_in,
    calibration_option,
    output_option,
    page_option,
    takes,
)
from tonnage.cli.commands.output_files import (
    answers_for,
    check_page,
    check_some,
    search_progress,
    write_page,
)
from tonnage.cli.commands.output_formats import serialize
from tonnage.cli.commands.plan_extras import RolesAsked
from tonnage.cli.commands.plan_options import (
    PlanInputOptions,
    asking,
    beside,
    terms_of,
)
from tonnage.cli.commands.plan_sources import (
    ClusterOptions,
    DemandOptions,
    check_demand,
    with_curve,
)
from tonnage.cli.console import Failure, output, print_error, remark, show
from tonnage.cli.read.manifest import load
from tonnage.cli.results.beside import with_hours, with_today
from tonnage.cli.results.plan_summary import exit_code, object_label, obstacles
from tonnage.cli.results.planning import (
    Planned,
    Refused,
    RunningState,
    with_offers,
    with_savings,
    with_whole_price,
)
from tonnage.cli.results.rendering import with_obstacle
from tonnage.cli.results.rows import step_rows
from tonnage.cli.text.beside import beside_report
from tonnage.cli.text.plan import first_report, further_report
from tonnage.manifests.children import has_recorded_cache
from tonnage.sizing.plan import OnSearch

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

HELP: Final = """Compute replicas, max-num-seqs and cost for models. Needs no cluster.

Takes manifests (-f) or options. Prints replicas, latencies and cost at the demand; then, with
formulas and numbers: GPU memory, the bottleneck, what limits the batch size, the latencies, the
number of replicas, and the cost. If spec.model.config refers to a ConfigMap, or spec.scaleTarget to
a Deployment, pass its manifest too: config.json is read from the ConfigMap, engine version and
flags from the Deployment.

Until engines are measured, the operator assumes slow ones (speedRange) and, in mode Auto, up to
15 % more traffic (Headroom), so it may start more replicas with fewer sequences than plan prints.
With demand.peakPercent or --demand-file the replicas are those of the peak; costs per token and
user are those of the mean rate.

\b
Examples:
  tonnage plan --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 --rps 4 \\
    --prompt 4000 --output 500 --ttft 2s --tpot 50ms       no file is needed
  tonnage plan -f model.yaml
  tonnage plan -f model.yaml --rps 40 --gpu L40S       the same, changed
  tonnage plan -f model.yaml --set model.kvCache=fp8   any field of it
  tonnage plan -f model.yaml --price H200=2.60         your own price
  tonnage plan -f model.yaml --model-config FILE       an uncatalogued model
  tonnage plan -f model.yaml --hub                     the same, fetched
  tonnage plan -f model.yaml --checkpoint DIR          exact weight sizes
  tonnage plan -f model.yaml --calibration FILE        measured constants
  tonnage plan -f model.yaml --demand-file day.csv     hour by hour
  tonnage plan --from-cluster llama -n serving         what runs
  tonnage plan -f model.yaml --disaggregated --kv-link 400Gb/s   cheaper?
  tonnage plan -f models/ -o json | jq '.[].plan.replicas'
  kubectl get mdep llama -o yaml | tonnage plan -f -

Exit codes: 0 all can be served; 2 one cannot (not at all, or not its demand within maxReplicas);
3 invalid input; 4, 5, 6 the cluster, as for explain; 1 unexpected error.
"""
Finish = Callable[[Planned | Refused], Planned | Refused]
"""Adds to an answer what takes further searches."""
SEVERAL: Final = "plan takes one GPU class, not {}; 'tonnage compare' takes several"
NO_CLASS: Final = (
    "plan needs a GPU class: --gpu H100, for example; 'tonnage compare' ranks all of them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the command was given."""

    question: PlanInputOptions
    demand: DemandOptions
    cluster: ClusterOptions
    roles: RolesAsked
    form: str = output_option()
    calibration_file: Path | None = calibration_option()
    page_file: str | None = page_option()


@click.command(help=HELP)
@takes(PlanOptions)
def plan(*, options: PlanOptions) -> None:
    question, roles = options.question, options.roles
    roles.check(options.form)
    check_page(options.page_file, options.form)
    gpu = class_of(question, is_running=options.cluster.name is not None)
    fleet = options.cluster.fleet(question, gpu)
    loaded = fleet.manifests if fleet else load(question.names) if question.names else None
    if fleet:
        question = replace(question, names=(str(options.cluster.name),))
    if loaded:
        check_some(loaded, question.names)
    curve = options.demand.curve(loaded)
    question = with_curve(question, curve) if curve else question
    asked = asking(question, gpu, loaded=loaded)
    around = beside(question)
    terms = terms_of(
        question,
        calibration=calibration_in(options.calibration_file),
        on_search=search_progress().counting(),
        peak_ratio=curve.peak_ratio if curve else 1.0,
        is_advice=fleet is None,
    )
    live = None
    if fleet:
        check_demand(asked)
        terms = replace(terms, planned=None if terms.calibration else fleet.planned)
        around = replace(around, config=around.config or fleet.config)
        if fleet.flags:
            has_cache = has_recorded_cache(fleet.view.flags)
            live = RunningState(flags=fleet.flags, asks_the_same=True, has_host_cache=has_cache)
    found = [answers_for(each, asked, terms, around, live) for each in asked.model_deployments]

    def finished(first: Planned | Refused) -> Planned | Refused:
        if isinstance(first, Refused):
            return with_offers(first, terms)
        each = roles.answered(with_savings(first, terms.on_search), terms.on_search)
        each = with_today(each, fleet.view, terms.on_search) if fleet else each
        return with_hours(each, curve, options.demand.start_s) if curve else each

    answers = [_with_obstacle(each, terms.on_search) for some in found for each in some]
    _print(answers, finished, options)
    is_broken = bool(asked.problems) or not all(found)
    sys.exit(exit_code(answers, is_broken=is_broken))


def class_of(question: PlanInputOptions, *, is_running: bool = False) -> str | None:
    """Return the one class that is named, if any; ``is_running``: pods of a cluster name it.

    Raises:
        Failure: several are, or none where there is no manifest to name it.
    """
    names = question.gpu_names
    if len(names) > 1:
        raise Failure(SEVERAL.format(", ".join(names)))
    is_set = any("hardware" in each.partition("=")[0] for each in question.settings)
    if not (names or question.names or is_set or is_running) and question.model_id:
        raise Failure(NO_CLASS)
    return names[0] if names else None


def _with_obstacle(found: Planned | Refused, on_search: OnSearch) -> Planned | Refused:
    """Return an answer with what keeps the operator from running it, and its price by instances."""
    if isinstance(found, Refused):
        return found
    found = with_whole_price(with_obstacle(found), on_search)
    for each in obstacles(found):
        remark(f"Note: {object_label(found)}: {each}")
    return found


def _further(answer: Planned | Refused, console: "Console") -> "Iterator[RenderableType]":
    """Yield what follows the first answer."""
    if isinstance(answer, Planned) or answer.offers:
        is_ascii = console.options.ascii_only
        yield further_report(answer, is_ascii=is_ascii, width=console.width)
    if isinstance(answer, Planned):
        yield from beside_report(answer, console)


def _parts(answers: list[Planned | Refused], console: "Console") -> "Iterator[RenderableType]":
    for number, each in enumerate(answers):
        if number:
            yield ""
        yield from first_report(each)
        yield from _further(each, console)


def _print(firsts: list[Planned | Refused], finished: Finish, options: PlanOptions) -> None:
    """Print answers, as text each at once, and what takes further searches behind it."""
    if options.form == "text" and options.page_file != "-":
        answers = _shown(firsts, finished)
    else:
        answers = [finished(each) for each in firsts]
    if options.page_file is not None:
        from tonnage.cli.page.demand_hours import plan_page  # noqa: PLC0415  (needs an extra)

        write_page(options.page_file, plan_page(partial(_parts, answers), answers))
    if options.form == "text":
        return
    for each in answers:
        if isinstance(each, Refused):
            print_error(f"{object_label(each)}: {each.message}")
    rows = [row for each in answers for row in step_rows(each)]
    click.echo(serialize([each.to_dict() for each in answers], options.form, rows=rows))


def _shown(firsts: list[Planned | Refused], finished: Finish) -> list[Planned | Refused]:
    console, answers = output(), list[Planned | Refused]()
    for first in firsts:
        if answers:
            console.print()
        for part in first_report(first):
            show(console, part)
        answers.append(finished(first))
        for part in _further(answers[-1], console):
            show(console, part)
    return answers
