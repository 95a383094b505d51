"""Two versions of manifests: which pods roll and why, and what replicas and cost become."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic.alias_generators import to_camel

from tonnage.api.objects import ModelDeployment
from tonnage.api.pods import UNTEMPLATED, Pods
from tonnage.cli.console import printable
from tonnage.cli.read.manifest import block
from tonnage.cli.results.plan_summary import begin_written, is_short
from tonnage.cli.results.planning import Planned, Refused, RunningState
from tonnage.cli.results.rendering import FILE_SITE, template_manifest
from tonnage.control.input.state import ACTING, DeploymentView
from tonnage.explain.demand_outcome import at_demand, price_figures, price_notes, reached_targets
from tonnage.explain.report import OFFLOAD, usd_per_hour
from tonnage.fleet.views import deployment_view
from tonnage.manifests.changes import ALL, Change, template_changes
from tonnage.manifests.children import (
    differs_in_pods,
    flags_from_annotation,
    has_recorded_cache,
    replaces_pods,
    spec_digest,
)
from tonnage.manifests.names import MANAGER, RECORD, WORKLOADS, Manifest, template_in
from tonnage.sizing.cost import GpuHour, cents, gpu_hour
from tonnage.units import count_of

SCRAPE_ANNOTATION: Final = "prometheus.io/scrape"
OF_PODS: Final = frozenset({"model", "hardware", "contextLength", "engine", "pods", "slo"})
"""Parts of a spec that a pod template is made from."""
BESIDE_PODS: Final = tuple(f"spec.pods.{to_camel(name)}" for name in (*UNTEMPLATED, "max_surge"))
"""What stands among them and replaces no pod."""

Kind = Literal["added", "removed", "changed", "same"]


def live_of(view: DeploymentView | None, model: ModelDeployment) -> RunningState | None:
    """Return what the flags for a spec are chosen by, where flags are recorded of what runs."""
    flags = flags_from_annotation(view.flags or "") if view else None
    if view is None or flags is None:
        return None
    is_same = view.digest == spec_digest(model)
    return RunningState(
        flags=flags,
        asks_the_same=is_same or differs_in_pods(model, view.made_from),
        is_rolled=not is_same and replaces_pods(model, view.made_from),
        has_host_cache=has_recorded_cache(view.flags),
    )


def runs_pods(planned: Planned) -> bool:
    """Tell whether Tonnage makes pods for a plan: not for a scale target, nor in Recommend."""
    spec = planned.deployment.spec
    return spec.scale_target is None and spec.scaling.mode != "Recommend"


def view_of_plan(planned: Planned) -> DeploymentView:
    """Return what would run for a plan: everything in it is ours."""
    made = template_manifest(planned, FILE_SITE)
    owned: Manifest = {"f:annotations": {f"f:{name}": {} for name in RECORD.values()}}
    ours = {"manager": MANAGER, "operation": "Apply", "fieldsV1": {"f:metadata": owned}}
    body = {**made, "metadata": {**made["metadata"], "uid": "", "managedFields": [ours]}}
    view = deployment_view(body, WORKLOADS[made["kind"]])
    return replace(view, replicas=planned.replicas, template_fields=json.dumps(ALL))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One object before and after. None: it is not there."""

    before: Planned | Refused | None
    after: Planned | Refused | None
    running: DeploymentView | None = None
    """Before; None: nothing of ours runs."""

    @property
    def name(self) -> str:
        known = self.after or self.before
        return f"{known.deployment.namespace}/{known.deployment.name}" if known else ""

    def runs(self, side: Planned | Refused | None) -> int:
        """Return the replicas on a side: where nothing acts those that run in any case."""
        if not isinstance(side, Planned):
            return 0
        if _makes_none(side):
            return self.running.replicas if self.running else 0
        return side.replicas

    def cost(self, side: Planned | Refused | None) -> float | None:
        """Return USD per hour of the replicas on a side; None: there is no price, or no plan."""
        if not isinstance(side, Planned):
            return None
        number, sizing = self.runs(side), side.sizing
        if _makes_none(side) and isinstance(self.before, Planned):
            sizing = self.before.sizing
        return usd_per_hour(sizing, number) if number else 0.0

    @property
    def kind(self) -> Kind:
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "changed" if self.spec_changes else "same"

    @property
    def spec_changes(self) -> tuple[Change, ...]:
        if self.before is None or self.after is None:
            return ()
        none = {"pods": Pods().to_dict()}  # a default is no change
        specs = (none | each.deployment.spec.to_dict() for each in (self.before, self.after))
        before, after = (dict(_leaves("spec", spec)) for spec in specs)
        return tuple(
            Change(field=path, before=before.get(path), after=after.get(path))
            for path in sorted(before.keys() | after.keys())
            if before.get(path) != after.get(path)
        )

    @property
    def pod_changes(self) -> tuple[Change, ...]:
        """For which fields of theirs the pods that run are replaced; nothing: they stay."""
        running, after = self.running, self.after
        if running is None or not isinstance(after, Planned) or not runs_pods(after):
            return ()
        if after.deployment.spec.scaling.mode == "Paused":
            return ()
        if running.digest == spec_digest(after.deployment):
            return ()
        template = next(running.workload.templates(json.loads(running.template)))
        is_annotated = SCRAPE_ANNOTATION in block(template, "metadata", "annotations")
        site = replace(FILE_SITE, has_pod_monitors=not is_annotated)
        wanted = template_manifest(after, site, running_drain_s=running.drain_s)
        live, owned = json.loads(running.template), json.loads(running.template_fields)
        return template_changes(live, template_in(wanted), owned=owned)

    @property
    def causes(self) -> tuple[str, ...]:
        """Changed fields of the spec that pods are made from, where pods are replaced."""
        if not self.pod_changes:
            return ()
        return tuple(
            each.field
            for each in self.spec_changes
            if each.field.split(".")[1] in OF_PODS and not each.field.startswith(BESIDE_PODS)
        )

    @property
    def num_rolled(self) -> int:
        running = self.running
        if running is None or not self.pod_changes:
            return 0
        return running.replicas * running.num_nodes


def _makes_none(side: Planned) -> bool:
    spec = side.deployment.spec
    return spec.scaling.mode not in ACTING and spec.scale_target is None


def offload_of(answer: Planned | Refused | None) -> str | None:
    """Return what Auto chose of the KV cache in host memory, and why; None: it was not asked."""
    reasons = answer.reasons if isinstance(answer, Planned) else ()
    return next((each.message for each in reasons if each.code == OFFLOAD), None)


def hour_of(answer: Planned | Refused | None) -> GpuHour | None:
    """Return the hour of one GPU that is paid; None: there is no price, or no plan."""
    if not isinstance(answer, Planned):
        return None
    return gpu_hour(answer.sizing.request.gpu, answer.sizing.parallelism.num_gpus)


def total_costs(found: Sequence[Difference]) -> list[float | None]:
    """Return USD per hour before and after; None where one has no price, or no plan."""
    before = (each.cost(each.before) for each in found if each.before is not None)
    after = (each.cost(each.after) for each in found if each.after is not None)
    return [_sum(before), _sum(after)]


def _sum(each: Iterable[float | None]) -> float | None:
    costs = list(each)
    known = [cost for cost in costs if cost is not None]
    return cents(sum(known)) if len(known) == len(costs) else None


def figures(found: Difference) -> dict[str, Any]:
    return {
        "name": found.name,
        "kind": found.kind,
        "specChanges": [_change(each) for each in found.spec_changes],
        "podsRolled": found.num_rolled,
        "causes": list(found.causes),
        "podChanges": [_change(each) for each in found.pod_changes],
        "before": figures_of(found, found.before),
        "after": figures_of(found, found.after),
    }


def _change(change: Change) -> dict[str, str | None]:
    return {"field": change.field, "before": change.before, "after": change.after}


def figures_of(found: Difference, answer: Planned | Refused | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    if isinstance(answer, Refused):
        return {"refused": {"reason": answer.code, "message": answer.message}}
    cost, flags, hour = found.cost(answer), answer.sizing.flags, hour_of(answer)
    replicas = found.runs(answer)
    asked, offload = at_demand(answer.sizing, answer.replicas), offload_of(answer)
    targets = reached_targets(answer.sizing, asked.served) if asked else ()
    return {
        "replicas": replicas,
        "replicasNeeded": answer.sizing.replicas,
        "gpus": replicas * flags.parallelism.num_gpus,
        "maxNumSeqs": flags.max_num_seqs,
        "usdPerHour": None if cost is None else cents(cost),
        "price": None if hour is None else price_figures(hour),
        **({"kvOffload": offload} if offload else {}),
        "latencies": {name: {"reached": each, "target": most} for name, each, most in targets},
    }


def _leaves(path: str, node: Any) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _leaves(f"{path}.{key}", value)
        return
    yield path, node if isinstance(node, str) else json.dumps(node, sort_keys=True)


ABSENT: Final = "-"
FIGURES: Final = ("replicas", "max-num-seqs", "USD/h")
ESCAPED: Final = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|#&@!~"})
"""What Markdown would act on: manifests come from whoever opens a pull request."""


def markdown(found: Sequence[Difference], *, max_usd_per_hour: float | None) -> str:
    """Return a heading, a table of what changes, and the causes of each change."""
    changed = [each for each in found if each.kind != "same"]
    lines = [f"### Tonnage: {_headline(found, changed)}", ""]
    lines += [_budget(found, max_usd_per_hour), ""] if max_usd_per_hour is not None else []
    if changed:
        lines += [*_table(changed), "", *_prices(changed)]
    for each in changed:
        lines += _details(each)
    return "\n".join(lines).rstrip("\n")


def _headline(found: Sequence[Difference], changed: Sequence[Difference]) -> str:
    if not changed:
        return f"none of {count_of(len(found), 'ModelDeployment')} changes"
    rolled = sum(each.num_rolled for each in changed)
    before, after = map(_usd, total_costs(found))
    created = "".join(f"{each}, " for each in filter(None, map(_created, changed)))
    return (
        f"{len(changed)} of {count_of(len(found), 'ModelDeployment')} "
        f"{'changes' if len(changed) == 1 else 'change'}, {created}"
        f"{count_of(rolled, 'pod') if rolled else 'no pod'} "
        f"{'is' if rolled <= 1 else 'are'} replaced, {_before_after(before, after)} USD per hour"
    )


def _created(each: Difference) -> str:
    """Write the replicas that are created where there was none; empty: none are."""
    after, number = each.after, each.runs(each.after)
    if not number or each.runs(each.before) or not isinstance(after, Planned):
        return ""
    if after.deployment.spec.scale_target:
        return ""
    gpus = number * after.sizing.parallelism.num_gpus
    replicas = count_of(number, "replica")
    are = "is" if number == 1 else "are"
    return f"{replicas} ({gpus} {after.sizing.request.gpu.name}) {are} created"


def _usd(cost: float | None) -> str:
    return "?" if cost is None else f"{cost:.2f}"


def _prices(changed: Sequence[Difference]) -> Iterator[str]:
    hours = [
        (answer.sizing.request.gpu.name, hour)
        for each in changed
        for answer in (each.before, each.after)
        if isinstance(answer, Planned) and (hour := hour_of(answer))
    ]
    for note in price_notes(hours):
        yield from (printable(note).translate(ESCAPED), "")


def _budget(found: Sequence[Difference], most: float) -> str:
    _, cost = total_costs(found)
    if cost is None:
        why = "a price or a plan is missing"
        return f"**Over budget:** {why}, the budget is {most:.2f} USD per hour."
    if cost > most:
        return f"**Over budget:** {cost:.2f} of {most:.2f} USD per hour."
    return f"Within the budget of {most:.2f} USD per hour."


def _table(changed: Sequence[Difference]) -> Iterator[str]:
    sides = [(_cells(each, each.before), _cells(each, each.after)) for each in changed]
    named = {name for both in sides for side in both for name in side}
    columns = [*FIGURES, *sorted(named - {*FIGURES})]
    yield _row(["object", "", "pods replaced", *columns])
    yield _row([":--", ":--", "--:", *["--:"] * len(columns)])
    for each, (before, after) in zip(changed, sides, strict=True):
        figures = (
            _before_after(before.get(name, ABSENT), after.get(name, ABSENT)) for name in columns
        )
        rolled = f"**{each.num_rolled}**" if each.num_rolled else "0"
        yield _row([_text(each.name), each.kind, rolled, *figures])


def _cells(found: Difference, side: Planned | Refused | None) -> dict[str, str]:
    """Return the figures of one side; one that has no plan has none."""
    known = figures_of(found, side)
    if known is None or "refused" in known:
        return {}
    latencies = {
        name: f"{each['reached']} of {each['target']}" for name, each in known["latencies"].items()
    }
    figures = (str(known["replicas"]), str(known["maxNumSeqs"]), _usd(known["usdPerHour"]))
    return dict(zip(FIGURES, figures, strict=True)) | latencies


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _before_after(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _details(each: Difference) -> Iterator[str]:
    notes = list(_notes(each))
    if not (each.spec_changes or notes):
        return
    yield f"#### {_text(each.name)}"
    yield ""
    yield from notes
    yield from (f"- {_change_written(change)}" for change in each.spec_changes)
    yield ""
    if each.pod_changes:
        pods = count_of(each.num_rolled, "pod is", "pods are")
        because = f", because of {', '.join(map(_code, each.causes))}" if each.causes else ""
        yield f"{pods} replaced{because}:"
        yield ""
        yield from (f"- {_change_written(change)}" for change in each.pod_changes)
        yield ""


def _notes(each: Difference) -> Iterator[str]:
    after = each.after
    if isinstance(after, Refused):
        yield f"- **Cannot be served** ({_text(after.code)}): {_text(after.message)}"
    elif after is not None and is_short(after):
        most = after.replicas
        needed = count_of(after.sizing.replicas, "replica")
        yield f"- **Not enough:** {needed} are needed, {most} are allowed"
    if isinstance(after, Planned) and each.running is None and not _makes_none(after):
        begin = begin_written(after)
        yield from [f"- Begins with {_text(begin)}"] if begin else []
    if offload := offload_of(after):
        yield f"- KV offload: {_text(offload)}"


def _change_written(change: Change) -> str:
    before, after = change.before, change.after
    if before is None:
        return f"{_code(change.field)}: {_code(str(after))} (new)"
    if after is None:
        return f"{_code(change.field)}: {_code(before)} (removed)"
    return f"{_code(change.field)}: {_code(before)} → {_code(after)}"


def _code(text: str) -> str:
    """Return a code span, in which no character of the text means anything to Markdown."""
    text = printable(text)
    ticks = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{ticks} {text} {ticks}" if "`" in text else f"`{text}`"


def _text(text: str) -> str:
    """Return a text of a manifest so that Markdown shows it unchanged."""
    return printable(text).translate(ESCAPED)
