"""What one rule says of an object: a condition before it gets its times."""

from typing import Final, Literal, NamedTuple

from tonnage.control.input.state import Assessment

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
