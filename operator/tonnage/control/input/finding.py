"""What one rule says of an object, and a bug of ours that one object meets while others go on."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from traceback import walk_tb
from typing import Final, Literal, NamedTuple, TypeVar

from tonnage.api.status import Reason
from tonnage.control.input.memory import ObjectMemory
from tonnage.control.input.state import Assessment, ModelState, Traffics
from tonnage.policy.situation import Metrics

State = Literal["True", "False", "Unknown"]
PENDING: Final = "PlanPending"
"""Reason of what waits for a search."""
UNREADABLE: Final = "NamespaceUnreadable"
"""Reason of what is in a namespace of which something could not be read."""


class Finding(NamedTuple):
    """A condition without its type and times."""

    state: State
    reason: str
    message: str


def is_false(found: Assessment, kind: str) -> bool:
    """Tell whether a condition was False at the last tick: it then takes more to turn it back."""
    before = found.memory.reported.conditions.get(kind)
    return before is not None and before.status == "False"


def said_before(found: Assessment, kind: str) -> Finding | None:
    """Return what a condition said of this spec, here or before a restart; None: nothing sure."""
    before = found.memory.reported.conditions.get(kind)
    if before is None or before.status == "Unknown":
        return None
    if before.observed_generation != found.state.view.generation:
        return None
    return Finding(before.status, before.reason, before.message)


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A bug of ours that one object met, while the others went on."""

    key: tuple[str, str]
    consequence: str
    error: Exception


def fault_id(error: BaseException) -> str:
    """Return what the log and the status call a bug: the same wherever it is met in the code."""
    places = [f"{frame.f_code.co_name}:{line}" for frame, line in walk_tb(error.__traceback__)]
    return sha256("\n".join([type(error).__name__, *places]).encode()).hexdigest()[:8]


def bug_message(error: BaseException) -> str:
    return f"internal error {fault_id(error)} (see the operator's log): retrying"


def of_each(
    found: Iterable[Assessment], part: Callable[[Assessment], T], consequence: str
) -> tuple[dict[str, T], list[Fault]]:
    """Return {UID: result} of the objects for which a part of the tick works, and its faults."""
    results, faults = dict[str, T](), list[Fault]()
    for each in found:
        view = each.state.view
        try:
            results[view.uid] = part(each)
        except Exception as error:
            faults.append(Fault(key=view.key, consequence=consequence, error=error))
    return results, faults


def assessment_with_bug(state: ModelState, known: ObjectMemory, error: Exception) -> Assessment:
    """Return an object that a bug keeps from being decided: what runs stays as it is."""
    why = Reason("InternalError", bug_message(error))
    return Assessment(
        state=replace(state, bug=error),
        memory=known,
        traffics=Traffics(
            metrics=Metrics.MISSING, why=why, demand=None, lengths=known.traffic.lengths
        ),
        refusal=why,
    )
