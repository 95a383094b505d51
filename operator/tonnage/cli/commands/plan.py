"""``tonnage plan``: what it takes to serve the models of some manifests. Needs no cluster."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tonnage.cli.commands.options import (
    FILE,
    AccessOptions,
    TrafficOptions,
    calibration_in,
    calibration_option,
    namespace_option,
    option,
    output_option,
    page_option,
    parsed,
    takes,
)
from tonnage.cli.commands.output_files import (
    answers_for,
    check_page,
    check_some,
    search_progress,
    write_page,
)
from tonnage.cli.commands.plan_options import (
    OFFLINE,
    PlanInputOptions,
    asking,
    beside,
    class_of,
    terms_of,
)
from tonnage.cli.console import Failure, failing, output, print_error, remark, serialize, show
from tonnage.cli.read.demand_curve import DemandCurve, counted_curve, is_trace, read_curve
from tonnage.cli.read.manifest import ManifestObject, Manifests, block, load
from tonnage.cli.read.spec_overrides import RATES
from tonnage.cli.results.alternatives import cheaper_whole, savings
from tonnage.cli.results.beside import with_hours, with_scaler, with_today
from tonnage.cli.results.plan_summary import exit_code, object_label, obstacles, step_rows
from tonnage.cli.results.planning import (
    Planned,
    Refused,
    RunningState,
    fewest_replicas,
    with_offers,
)
from tonnage.cli.results.rendering import with_obstacle
from tonnage.cli.text.plan import beside_report, first_report, plan_report, refusal_report
from tonnage.explain.report import offload_figures
from tonnage.explain.topology import offload_answer, roles_verdict
from tonnage.manifests.children import has_recorded_cache
from tonnage.sizing.offload import held_at
from tonnage.sizing.plan import OnSearch
from tonnage.sizing.roles import weigh_roles
from tonnage.units import DAY_S, bytes_per_second, seconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tonnage.cli.read.fleet import RunningFleet
    from tonnage.cli.results.planning import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions:
    """Where rates by the hour come from."""

    # fmt: off
    file: Path | None = option("--demand-file", metavar="FILE", type=FILE,
        help="Demand by the hour: csv with 'hour,requests_per_s' (or time; or requests, counted), "
        "a JSON list of rates, or a trace as replay reads it. Prints replicas by hour, GPU-hours "
        "and cost a month, beside a constant fleet.")
    start_s: float = option("--start-up", metavar="DURATION", default="240s",
        callback=parsed(seconds),
        help="With demand by the hour: from creating a replica to Ready.")
    traffic: TrafficOptions
    # fmt: on

    def curve(self, manifests: Manifests | None) -> DemandCurve | None:
        """Return the rates; ``manifests``: with the object whose traffic it is. None: not given."""
        file, url = self.file, self.traffic.prometheus_url
        if file is not None and url is not None:
            raise Failure("--demand-file and --prometheus both give the demand: leave one out")
        if file is None and url is None:
            return None
        found = manifests.model_deployments if manifests else ()
        if len(found) > 1:
            raise Failure(f"a demand by the hour is of one ModelDeployment, not of {len(found)}")
        if file is None:
            curve = self._counted(*found)
        else:
            curve = _of_trace(file, self.traffic.time_unit) if is_trace(file) else read_curve(file)
        if curve.duration_s % DAY_S:
            remark(f"Note: {curve.source}: no whole days, but a month counts as if all were so")
        return curve

    def _counted(self, resource: ManifestObject | None = None) -> DemandCurve:
        from tonnage.replay.measured_traffic import trace_of  # noqa: PLC0415  (slow)

        if resource is None and self.traffic.selector is None:
            raise Failure("--prometheus without a manifest needs --selector: whose traffic is it?")
        namespace, name = (resource.namespace, resource.name) if resource else ("", "")
        found = self.traffic.counted(namespace, name)
        with failing(ValueError, where="--prometheus: "):
            trace = trace_of(found, longest_tokens=1)
        span, url = found.span, str(self.traffic.prometheus_url)
        return counted_curve(url, trace, span.num_steps * span.step_s, begins_s=span.from_s)


def _of_trace(file: Path, time_unit: str | None) -> DemandCurve:
    from tonnage.cli.commands.replay import read  # noqa: PLC0415  (slow)
    from tonnage.replay.traces import duration_of  # noqa: PLC0415

    trace = read(file, time_unit)
    return counted_curve(file.name, trace, duration_of(trace))


def with_curve(question: PlanInputOptions, curve: DemandCurve) -> PlanInputOptions:
    """Return the question for the peak of a curve, with lengths that were counted."""
    if question.requests_per_s is not None:
        raise Failure("--rps and a demand by the hour both give the rate: leave one out")
    given = {"promptTokens": question.prompt_tokens, "outputTokens": question.output_tokens}
    lengths = [
        f"{path}={number}" for path, number in curve.lengths if given[path.split(".")[1]] is None
    ]
    if lengths:
        remark(f"Note: lengths as counted: {', '.join(lengths)}")
    settings = (*lengths, *question.settings)
    return replace(question, requests_per_s=max(curve.requests_per_s), settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """What runs, and where."""

    # fmt: off
    name: str | None = option("--from-cluster", metavar="NAME",
        help="Plan what runs: a ModelDeployment, Deployment or LeaderWorkerSet of the cluster. "
        "Prints what it costs today, and what its demand would take. Reads, changes nothing.")
    namespace: str | None = namespace_option(
        "With --from-cluster: its namespace. Default: the one of the context.")
    access: AccessOptions
    # fmt: on

    def fleet(self, question: PlanInputOptions, gpu: str | None) -> "RunningFleet | None":
        """Return what runs; None: nobody asks for it."""
        if self.name is None:
            return None
        if question.names:
            raise Failure("-f and --from-cluster both say what is planned: leave one out")
        from tonnage.cli.read.fleet import FleetReader  # noqa: PLC0415  (slow)

        cluster = self.access.connect()
        reader = FleetReader(cluster, self.namespace or cluster.namespace, self.name)
        return reader.read(question.model_id, gpu)


def check_demand(asked: Manifests) -> None:
    for each in asked.model_deployments:
        if not block(each.content, "spec", "demand").keys() & {*RATES}:
            raise Failure(
                f"{each.name}: nothing says how many requests come: give --rps, --demand-file or "
                "--prometheus"
            )
        if "slo" not in block(each.content, "spec"):
            remark(OFFLINE)


TABLES: Final = ("csv", "markdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolesAsked:
    """The options of roles apart."""

    # fmt: off
    disaggregated: bool = option("--disaggregated", is_flag=True,
        help="Compare prefill and decode on separate replicas with one fleet for both.")
    kv_link: float | None = option("--kv-link", metavar="RATE", callback=parsed(bytes_per_second),
        help="What a GPU moves to a replica of the other role, such as 50GB/s or 400Gb/s. Default: "
        "hardware.nodeLink, else the link between the GPUs of a node.")
    """Bytes per second of a GPU."""
    # fmt: on

    def check(self, form: str) -> None:
        """Refuse options that mean nothing without another, or in a form."""
        if self.kv_link is not None and not self.disaggregated:
            raise Failure("--kv-link is between roles: it needs --disaggregated")
        if self.disaggregated and form in TABLES:
            raise Failure(f"-o {form} cannot show --disaggregated; use text, json or yaml")

    def answered(self, answer: Planned, on_search: OnSearch) -> Planned:
        sizing, spec, verdicts = answer.sizing, answer.deployment.spec, dict[str, "Verdict"]()
        if self.disaggregated:
            verdicts["rolesApart"] = self._roles(answer, on_search)
        if spec.model.kv_offload is not None:
            held, why = held_at(sizing, answer.replicas), answer.why_offload
            if figures := offload_figures(spec, sizing, held_fraction=held, why=why):
                verdicts["kvOffload"] = offload_answer(spec, sizing, figures), figures
        return replace(answer, verdicts=verdicts)

    def _roles(self, planned: Planned, on_search: OnSearch) -> "Verdict":
        """Return whether roles apart cost less than the replicas that both together need."""
        sizing = planned.sizing
        is_assumed = self.kv_link is None and sizing.request.node_link_bytes_per_s is None
        link = self.kv_link or sizing.request.other_node_bytes_per_s
        replicas = max(planned.replicas, sizing.replicas)
        found = weigh_roles(sizing, replicas, link, on_search=on_search)
        return roles_verdict(found, link_is_assumed=is_assumed)


HELP: Final = """Compute replicas, max-num-seqs and cost for models. Needs no cluster.

Takes manifests (-f) or options. Prints replicas, latencies and cost at the demand; then, with
formulas and numbers: GPU memory, the bottleneck, what limits the batch size, the latencies, the
number of replicas, and the cost. If spec.model.config refers to a ConfigMap, or spec.scaleTarget to
a Deployment, pass its manifest too: config.json is read from the ConfigMap, engine version and
flags from the Deployment. Deployments and LeaderWorkerSets of vLLM without a ModelDeployment are
planned as --from-cluster plans what runs, with the ModelDeployment that would scale them.

Until engines are measured, the operator counts with slow ones (speedRange) and, in mode Auto, with
up to 15 % more traffic (Headroom): "begins" says how many replicas that takes, at what cost
and why. Its flags are those of the plan; the limits of a queue with inTime are those of slow ones.
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
  kubectl get deploy vllm -o yaml | tonnage plan -f - --rps 4 --prompt 4000 \\
    --output 500 --ttft 2s --tpot 50ms           what it costs and would take

Exit codes: 0 all can be served; 2 one cannot (not at all, or not its demand within maxReplicas);
3 invalid input; 4, 5, 6 the cluster, as for explain; 1 unexpected error.
"""
Finish = Callable[[Planned | Refused], Planned | Refused]
"""Adds to an answer what takes further searches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
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
    loaded, fleets = (fleet.manifests, [fleet]) if fleet else _loaded(question, gpu)
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
        is_advice=not fleets,
    )
    live = None
    if fleets:
        check_demand(asked)
    if fleet:
        terms = replace(terms, planned=None if terms.calibration else fleet.planned)
        around = replace(around, config=around.config or fleet.config)
        if fleet.flags:
            has_cache = has_recorded_cache(fleet.view.flags)
            live = RunningState(flags=fleet.flags, asks_the_same=True, has_host_cache=has_cache)
    found = [answers_for(each, asked, terms, around, live) for each in asked.model_deployments]

    def finished(first: Planned | Refused) -> Planned | Refused:
        if isinstance(first, Refused):
            return with_offers(first, terms)
        fewest, on_search = fewest_replicas(first.deployment), terms.on_search
        less = savings(first.sizing, first.replicas, fewest=fewest, on_search=on_search)
        each = roles.answered(replace(first, savings=less), on_search)
        each = _beside_what_runs(each, fleets, asked, on_search)
        return with_hours(each, curve, options.demand.start_s) if curve else each

    answers = [_with_obstacle(each, terms.on_search) for some in found for each in some]
    _print(answers, finished, options)
    is_broken = bool(asked.problems) or not all(found)
    sys.exit(exit_code(answers, is_broken=is_broken))


def _loaded(
    question: PlanInputOptions, gpu: str | None
) -> "tuple[Manifests | None, list[RunningFleet]]":
    """Return the manifests of files, and where no ModelDeployment is among them, what runs."""
    if not question.names:
        return None, []
    loaded = load(question.names)
    if loaded.model_deployments or not loaded.deployments:
        return loaded, []
    from tonnage.cli.read.fleet import fleets_in  # noqa: PLC0415  (slow)

    fleets, problems = fleets_in(loaded, question.model_id, gpu)
    if not (fleets or problems or loaded.problems):
        files = ", ".join(question.names)
        raise Failure(f"no ModelDeployment of tonnage.dev, and no workload of vLLM, in {files}")
    made = tuple(one for each in fleets for one in each.manifests.model_deployments)
    return replace(loaded, model_deployments=made, problems=(*loaded.problems, *problems)), fleets


def _beside_what_runs(
    answer: Planned, fleets: "Sequence[RunningFleet]", asked: Manifests, on_search: OnSearch
) -> Planned:
    """Return a plan with what runs today of it, and of a workload what would scale it."""
    place = answer.deployment.namespace, answer.deployment.name
    for each in fleets:
        if each.manifests.model_deployments[0].key[1:] == place:
            answer = with_today(answer, each.view, on_search)
            if each.is_made:
                [content] = (one.content for one in asked.model_deployments if one.key[1:] == place)
                answer = with_scaler(answer, content, each.view.replicas)
    return answer


def _with_obstacle(found: Planned | Refused, on_search: OnSearch) -> Planned | Refused:
    """Return an answer with what keeps the operator from running it, and its price by instances."""
    if isinstance(found, Refused):
        return found
    whole = cheaper_whole(found.sizing, fewest_replicas(found.deployment), on_search)
    found = replace(with_obstacle(found), cheaper_whole=whole)
    for each in obstacles(found):
        remark(f"Note: {object_label(found)}: {each}")
    return found


def _parts(
    answers: list[Planned | Refused], finished: Finish | None, console: "Console"
) -> "Iterator[RenderableType]":
    """Yield each answer as soon as it is known, and what takes further searches behind it.

    ``finished``: makes of each what takes its place in the list; None: they are finished.
    """
    for number, first in enumerate(answers):
        if number:
            yield ""
        yield from first_report(first)
        answer = answers[number] = finished(first) if finished else first
        if isinstance(answer, Planned):
            yield plan_report(answer, console)
            yield from beside_report(answer, console)
        elif answer.offers:
            yield refusal_report(answer)


def _print(answers: list[Planned | Refused], finished: Finish, options: PlanOptions) -> None:
    if options.form == "text" and options.page_file != "-":
        console = output()
        for part in _parts(answers, finished, console):
            show(console, part)
    else:
        answers = list(map(finished, answers))
    if options.page_file is not None:
        from tonnage.cli.page.pictures import plan_page  # noqa: PLC0415  (needs an extra)

        again = partial(_parts, answers, None)
        write_page(options.page_file, plan_page(again, answers))
    if options.form == "text":
        return
    for each in answers:
        if isinstance(each, Refused):
            print_error(f"{object_label(each)}: {each.message}")
    rows = [row for each in answers for row in step_rows(each)]
    click.echo(serialize([each.to_dict() for each in answers], options.form, rows=rows))
