"""Who made what of the pod template, as the condition ``Drifted`` says it."""

from collections.abc import Iterator
from itertools import groupby

from tonnage.api.objects import ModelDeployment
from tonnage.control.decide.template import MOST_NAMED
from tonnage.control.input.finding import Finding
from tonnage.control.input.state import Assessment, DeploymentView, Fleet
from tonnage.control.input.writers import SOMEBODY
from tonnage.manifests.changes import Change


def template_drift(found: Assessment, _: Fleet) -> Finding | None:
    """Present while there is a Deployment of ours, whatever becomes of the plan."""
    drift, live = found.memory.writers.drift, found.state.deployment
    if drift is None or live is None:
        return None
    if not drift.is_known:
        return Finding("Unknown", "WrittenOtherwise", _unknown(found, live))
    if not drift.changes and not drift.added:
        return Finding("False", "AsWritten", "the pod template is as Tonnage wrote it")
    message = "; ".join(_by_manager((*drift.changes, *drift.added)))
    return Finding("True", "TemplateEdited", message)


def _unknown(found: Assessment, live: DeploymentView) -> str:
    why = "drift is unknown: another version or other settings of Tonnage wrote the template"
    if not isinstance(found.state.model, ModelDeployment):
        why = "drift is unknown: the spec is invalid"
    who = " and ".join(sorted(live.template_managers))
    return f"{why}; {who} wrote fields of it" if who else why


def _by_manager(changes: tuple[Change, ...]) -> Iterator[str]:
    """Yield who did what: who removed a field is recorded nowhere."""
    for (who, verb), some in groupby(changes[:MOST_NAMED], key=_manager):
        yield f"{who} {verb} {', '.join(map(_field, some))}"
    if len(changes) > MOST_NAMED:
        yield f"and {len(changes) - MOST_NAMED} more"


def _manager(change: Change) -> tuple[str, str]:
    verb = "added" if change.is_added else "wrote" if change.before else "removed"
    return " and ".join(change.by) or SOMEBODY, verb


def _field(change: Change) -> str:
    if change.is_added:
        return change.field if change.before == "there" else f"{change.field} {change.before}"
    became = f" {change.before}" if change.before else ""
    return f"{change.field}{became}, ours: {change.after or 'none'}"
