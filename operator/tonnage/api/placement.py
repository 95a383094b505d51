"""Where pods may run, and as whom: the part of a pod that clusters differ in."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tonnage.api.base import ApiModel, rule, rules
from tonnage.api.fields import LabelName, LabelValue


class Toleration(ApiModel):
    """A taint that the pods accept."""

    model_config = rules(
        rule("self.operator == 'Equal' || !has(self.value)", "operator Exists takes no value"),
        rule("self.operator == 'Exists' || has(self.key)", "operator Equal needs a key"),
    )

    key: LabelName | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Toleration":
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("operator Exists takes no value")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("operator Equal needs a key")
        return self


class NodeRequirement(ApiModel):
    """What a label of a node must be."""

    model_config = rules(
        rule(
            "self.operator in ['In', 'NotIn'] == (has(self.values) && size(self.values) > 0)",
            "operators In and NotIn need values, Exists and DoesNotExist take none",
        )
    )

    key: LabelName
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = "In"
    values: Annotated[tuple[LabelValue, ...], Field(max_length=32)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "NodeRequirement":
        if (self.operator in {"In", "NotIn"}) != bool(self.values):
            raise ValueError(
                "operators In and NotIn need values, Exists and DoesNotExist take none"
            )
        return self


class TopologySpread(ApiModel):
    """How the pods of one revision spread over the values of a node label."""

    max_skew: Annotated[int, Field(ge=1, le=100)] = 1
    topology_key: LabelName
    """Such as topology.kubernetes.io/zone."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"


class User(ApiModel):
    """Who the engine runs as, in place of user and group 2000; never root.

    What is absent is left to the platform: OpenShift gives each namespace a range of its own.
    """

    id: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = None
    group: Annotated[int, Field(ge=0, le=2_147_483_647)] | None = None
    """Of the process and of its volumes."""
