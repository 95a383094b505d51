"""Where pods may run, and as which user: the part of a pod that clusters differ in."""

from typing import Annotated, Literal

from pydantic import Field

from tonnage.api.base import ApiModel, Checked, Rule, rule
from tonnage.api.fields import LabelName, LabelValue, ResourceName

_PRIORITY_MESSAGE = (
    "must not begin with system-: name a PriorityClass that is not the cluster's own"
)


def _checked_priority(name: str) -> str:
    if name.startswith("system-"):
        raise ValueError(_PRIORITY_MESSAGE)
    return name


PriorityName = Annotated[
    ResourceName,
    Checked(_checked_priority, (rule("!self.startsWith('system-')", _PRIORITY_MESSAGE),)),
]


class Toleration(ApiModel):
    """A taint that the pods accept."""

    rules = (
        Rule(
            "self.operator == 'Equal' || !has(self.value)",
            "operator Exists takes no value",
            lambda it: it.operator == "Equal" or it.value is None,
        ),
        Rule(
            "self.operator == 'Exists' || has(self.key)",
            "operator Equal needs a key",
            lambda it: it.operator == "Exists" or it.key is not None,
        ),
    )

    key: LabelName | None = None
    """Key of the taint; absent with operator Exists: every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Exists: any value of the taint; Equal: this one."""
    value: LabelValue | None = None
    """Value of the taint, with operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; absent: every effect."""


class NodeRequirement(ApiModel):
    """What a label of a node must be."""

    rules = (
        Rule(
            "self.operator in ['In', 'NotIn'] == (has(self.values) && size(self.values) > 0)",
            "operators In and NotIn need values, Exists and DoesNotExist take none",
            lambda it: (it.operator in {"In", "NotIn"}) == bool(it.values),
        ),
    )

    key: LabelName
    """Label of the node."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = "In"
    """What its value must be: In or NotIn values; or whether the label Exists."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """For In and NotIn."""


class TopologySpread(ApiModel):
    """How the pods of one revision spread over the values of a node label."""

    max_skew: Annotated[int, Field(ge=1, le=100)] = 1
    """Pods by which the values of the label may differ."""
    topology_key: LabelName
    """Such as topology.kubernetes.io/zone."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"
    """ScheduleAnyway: a preference. DoNotSchedule: a pod waits rather than break it."""


class User(ApiModel):
    """Who the engine runs as, in place of user and group 2000; never root.

    What is absent is left to the platform: OpenShift gives each namespace a range of its own.
    """

    id: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """The user that the engine runs as, never 0; absent: the platform chooses."""
    group: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """The group of the engine and of its volumes; absent: the platform chooses."""
