"""``tonnage diff``: what a change of manifests does to pods, replicas, latency and cost."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from tonnage.api.hardware import ROLES
from tonnage.api.objects import ModelDeployment
from tonnage.cli.commands.options import (
    AccessOptions,
    CatalogOptions,
    argument,
    calibration_in,
    calibration_option,
    format_option,
    namespace_option,
    option,
    takes,
)
from tonnage.cli.console import OK, OVER_BUDGET, Failure, ManifestError, print_error, serialize
from tonnage.cli.read.fleet import LiveObject, read_live
from tonnage.cli.read.live import LiveCluster
from tonnage.cli.read.manifest import SUFFIXES, ManifestObject, Manifests, block, load
from tonnage.cli.read.references import (
    ParsedModel,
    References,
    config_of,
    engine_of,
    parsed_model,
    target_of,
)
from tonnage.cli.results.differing import (
    Difference,
    figures,
    live_of,
    markdown,
    runs_pods,
    total_costs,
    view_of_plan,
)
from tonnage.cli.results.plan_summary import exit_code
from tonnage.cli.results.planning import (
    NOTHING,
    PlanContext,
    Planned,
    Refused,
    There,
    answer,
    parts_of,
)
from tonnage.cli.results.rendering import FILE_SITE, servable
from tonnage.control.input.state import DeploymentView
from tonnage.manifests.roles import role_name
from tonnage.manifests.target import TargetEngine

HELP: Final = """Show what a change of manifests does, as Markdown for a pull request.

OLD and NEW are files or folders with ModelDeployments; either may be empty. Prints
which pods are replaced and for which fields, and replicas, cost and latency before and after,
planned for spec.demand. Running flags stay if the operator would not change them. With
--from-cluster OLD is what the cluster has, planned with the constants in its status; it is
read, and nothing is changed.

\b
Examples:
  tonnage diff old.yaml new.yaml
  tonnage diff --from-cluster new.yaml -n serving
  git show main:model.yaml | tonnage diff - model.yaml --max-usd-per-hour 120
  tonnage diff old/ new/ -o json | jq '.objects[] | select(.podsRolled > 0)'

Exit codes: 0 all can be served, within the budget if one is given; 2 one cannot (not at all, or not
its demand within maxReplicas); 3 invalid input; 4, 5, 6 the cluster, as for explain; 7 the budget
is exceeded, or a price is missing; 1 unexpected error.
"""
OLD_AND_NEW: Final = 2

Key = tuple[str, str]


@dataclass(slots=True, kw_only=True)
class _Inputs:
    """What both versions are planned with."""

    terms: PlanContext
    config: str | None
    namespace: str | None
    """Of objects that name none."""
    is_broken: bool = False
    """Something could not be read, and the user knows."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Say what cannot be read, and go on behind it."""
        try:
            yield
        except ManifestError as error:
            print_error(error.message)
            self.is_broken = True

    def load(self, name: str) -> Manifests:
        manifests = load([name])
        for problem in manifests.problems:
            print_error(problem)
            self.is_broken = True
        return manifests

    def parse(self, resource: ManifestObject, manifests: Manifests) -> ParsedModel:
        """Read an object; one that names no namespace is in the one that is meant."""
        found = parsed_model(resource, manifests)
        if self.namespace is None or block(resource.content, "metadata").get("namespace"):
            return found
        return replace(found, model=replace(found.model, namespace=self.namespace))


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffOptions:
    # fmt: off
    names: tuple[str, ...] = argument(nargs=-1, required=True, metavar="[OLD] NEW")
    from_cluster: bool = option(
        "--from-cluster", is_flag=True, help="Compare with the objects in the cluster.")
    form: str = format_option("markdown", "json")
    max_usd_per_hour: float | None = option("--max-usd-per-hour", type=click.FloatRange(min=0),
        help="Budget for all ModelDeployments of NEW together, at their spec.demand.")
    namespace: str | None = namespace_option("Namespace of manifests that name none.")
    catalog: CatalogOptions
    calibration_file: Path | None = calibration_option()
    access: AccessOptions
    # fmt: on


@click.command(help=HELP)
@takes(DiffOptions)
def diff(*, options: DiffOptions) -> None:
    names, most = options.names, options.max_usd_per_hour
    if len(names) != (1 if options.from_cluster else OLD_AND_NEW):
        raise click.UsageError("give OLD and NEW, or NEW with --from-cluster")
    inputs = _Inputs(
        terms=PlanContext(
            gpus=options.catalog.gpus(), calibration=calibration_in(options.calibration_file)
        ),
        config=options.catalog.config(),
        namespace=options.namespace,
    )
    new = inputs.load(names[-1])
    if options.from_cluster:
        cluster = options.access.connect()
        inputs.namespace = options.namespace or cluster.namespace
        found = list(_against(cluster, new, inputs))
    else:
        folder = Path(names[0])  # perhaps from before there were any manifests
        has_some = not folder.is_dir() or any(each.suffix in SUFFIXES for each in folder.iterdir())
        old = inputs.load(names[0]) if has_some else load([])
        found = list(_between(old, new, inputs))
    _print(found, options.form, most)
    after = [each.after for each in found if each.after]
    _, cost = total_costs(found)
    over = OVER_BUDGET if most is not None and (cost is None or cost > most) else OK
    sys.exit(exit_code(after, is_broken=inputs.is_broken) or over)


def _print(found: list[Difference], form: str, most: float | None) -> None:
    if form == "markdown":
        click.echo(markdown(found, max_usd_per_hour=most))
        return
    before, after = total_costs(found)
    cost = {"before": before, "after": after, "most": most}
    content = {"usdPerHour": cost, "objects": [figures(each) for each in found]}
    click.echo(serialize(content, "json"))


def _between(old: Manifests, new: Manifests, inputs: _Inputs) -> Iterator[Difference]:
    before = _by_name(old, inputs, NOTHING)
    after = _by_name(new, inputs, {key: each.model for key, each in before.items()})
    if inputs.is_broken:
        raise Failure("nothing is compared: what cannot be read would look removed")
    if not (before or after):
        raise Failure("there is no ModelDeployment of tonnage.dev in OLD or NEW")
    for key in sorted(before.keys() | after.keys()):
        with inputs.reading():
            yield _difference(before.get(key), after.get(key), inputs)


def _by_name(manifests: Manifests, inputs: _Inputs, there: There) -> Mapping[Key, ParsedModel]:
    """Return the objects of files, in place of one with a topology those of its roles."""
    found = {}
    for resource in manifests.model_deployments:
        with inputs.reading():
            parsed = inputs.parse(resource, manifests)
            references = References()
            if parsed.model.spec.topology:
                references = References(config=inputs.config).of(parsed)
            for part in parts_of(parsed.model, inputs.terms, references, there=there).models:
                found[part.key] = replace(parsed, model=part)
    return found


def _difference(old: ParsedModel | None, new: ParsedModel | None, inputs: _Inputs) -> Difference:
    def planned(parsed: ParsedModel, running: DeploymentView | None) -> Planned | Refused:
        return _answer(parsed.model, inputs, References(config=inputs.config).of(parsed), running)

    before = None if old is None else planned(old, None)
    running = view_of_plan(before) if isinstance(before, Planned) and runs_pods(before) else None
    after = None if new is None else planned(new, running)
    return Difference(before=before, after=after, running=running)


def _answer(
    model: ModelDeployment, inputs: _Inputs, references: References, running: DeploymentView | None
) -> Planned | Refused:
    live = live_of(running, model)
    return servable(answer(model, inputs.terms, references, live=live), FILE_SITE)


def _against(cluster: LiveCluster, new: Manifests, inputs: _Inputs) -> Iterator[Difference]:
    for resource in new.model_deployments:
        with inputs.reading():
            parsed = inputs.parse(resource, new)
            known = dict(_live_parts(cluster, parsed.model))
            whole = known[parsed.model.key]
            references = References(
                config=inputs.config or _config(parsed, whole), target=_target(parsed, whole)
            )
            there = {key: live.model for key, live in known.items() if live and live.workload}
            for model in parts_of(parsed.model, inputs.terms, references, there=there).models:
                yield _against_live(model, references, known[model.key], inputs)


def _live_parts(
    cluster: LiveCluster, model: ModelDeployment
) -> Iterator[tuple[Key, LiveObject | None]]:
    names = [model.name]
    if model.spec.topology:
        names += [role_name(model.name, role) for role in ROLES]
    for name in names:
        yield (model.namespace, name), read_live(cluster, namespace=model.namespace, name=name)


def _against_live(
    model: ModelDeployment, references: References, live: LiveObject | None, inputs: _Inputs
) -> Difference:
    if live is None:
        return Difference(before=None, after=_answer(model, inputs, references, None))
    running = None if live.model.spec.scale_target else live.view
    inputs = _as_the_operator_plans(inputs, live, model)
    theirs = replace(references, config=inputs.config or live.config)
    before = _answer(live.model, inputs, theirs, running)
    if running is None and isinstance(before, Planned) and runs_pods(before):
        running = view_of_plan(before)
    after = _answer(model, inputs, references, running)
    return Difference(before=before, after=after, running=running)


def _as_the_operator_plans(inputs: _Inputs, live: LiveObject, model: ModelDeployment) -> _Inputs:
    """Take the constants from the status, where they are of the engines that both specs mean."""
    specs = [each.spec for each in (live.model, model)]
    is_same = len({(each.model, each.hardware, each.engine) for each in specs}) == 1
    if live.planned is None or not is_same or inputs.terms.calibration is not None:
        return inputs
    terms = replace(inputs.terms, planned=live.planned, believed=live.believed)
    return replace(inputs, terms=terms)


def _config(parsed: ParsedModel, live: LiveObject | None) -> str | None:
    """Return the config.json that the cluster has, where the files do not bring another."""
    source = parsed.model.spec.model.config
    if source and live and live.config:
        key = ("ConfigMap", parsed.model.namespace, source.config_map_key_ref.name)
        if key not in parsed.manifests.config_maps:
            return live.config
    return config_of(parsed)


def _target(parsed: ParsedModel, live: LiveObject | None) -> TargetEngine | None:
    """Return the Deployment that is scaled: as it runs, else as the files have it."""
    if parsed.model.spec.scale_target and live and live.model.spec.scale_target and live.workload:
        return engine_of(ManifestObject(source="cluster", line=0, content=live.workload), parsed)
    return target_of(parsed)
