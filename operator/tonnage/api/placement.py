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
    """The key of the taint. If absent, with operator Exists, every taint matches."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal matches the given value of the taint, Exists any value."""
    value: LabelValue | None = None
    """The value of the taint, for operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The effect of the taint. If absent, every effect matches."""


class NodeRequirement(ApiModel):
    """A requirement on a label of a node."""

    rules = (
        Rule(
            "self.operator in ['In', 'NotIn'] == (has(self.values) && size(self.values) > 0)",
            "operators In and NotIn need values, Exists and DoesNotExist take none",
            lambda it: (it.operator in {"In", "NotIn"}) == bool(it.values),
        ),
    )

    key: LabelName
    """The key of the node label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = "In"
    """How the label is compared: In or NotIn ``values``, or whether it Exists or DoesNotExist."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()
    """The values that In and NotIn compare with."""


class TopologySpread(ApiModel):
    """How the pods of one revision spread over the values of a node label."""

    max_skew: Annotated[int, Field(ge=1, le=100)] = 1
    """The maximum difference between the numbers of pods in two topology domains."""
    topology_key: LabelName
    """The node label of the topology domains, such as topology.kubernetes.io/zone."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"
    """ScheduleAnyway is a preference. With DoNotSchedule a pod waits if no node satisfies it."""


class User(ApiModel):
    """The user and group of the engine, which never runs as root. Without spec.pods.user: 2000.

    With it, Tonnage sets the fields that are here and leaves the others to the cluster: OpenShift
    takes them from the range of the namespace, other clusters from the image.
    """

    id: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    """The user id of the engine, not 0. If absent, the cluster chooses."""
    group: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """The group id of the engine and of its volumes. If absent, the cluster chooses."""
