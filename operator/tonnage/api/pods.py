"""The parts of a spec that reach a pod: the engine, and the closed set of pod fields."""

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tonnage.api.base import ApiModel, rule, rules
from tonnage.api.fields import (
    Argument,
    LabelName,
    LabelValue,
    NodeSelector,
    Quantity,
    ResourceName,
)


class ConfigMapKey(ApiModel):
    """One key of a ConfigMap in the same namespace."""

    name: ResourceName
    key: Annotated[str, Field(pattern="^[-._A-Za-z0-9]{1,253}$", max_length=253)]


class SecretKey(ApiModel):
    """One key of a Secret in the same namespace. It is named in the pod and never read here."""

    name: ResourceName
    key: Annotated[str, Field(pattern="^[-._A-Za-z0-9]{1,253}$", max_length=253)] = "token"


_TAG_VERSION = ":v?[0-9]{1,4}[.][0-9]{1,4}([.+-][A-Za-z0-9._+-]{0,100})?$"


class Speculative(ApiModel):
    """Speculative decoding: draft tokens, which one step of the model verifies together."""

    method: Literal["mtp", "ngram"]
    """mtp: draft layers of the checkpoint; ngram: a search in the text so far."""
    tokens: Annotated[int, Field(ge=1, le=16)]
    """Draft tokens for each sequence in each step."""
    accepted_percent: Annotated[int, Field(ge=0, le=100)]
    """How often a draft token is accepted when those before it were: by model and traffic."""


class Engine(ApiModel):
    """The serving engine. Its version decides flags, memory constants and metric names."""

    model_config = rules(
        rule(
            f"has(self.version) || (has(self.image) && self.image.matches('{_TAG_VERSION}'))",
            "version is required unless the image tag is a version",
        ),
        rule(
            "!has(self.args) || self.args.all(a, self.args.exists_one(b, "
            "b.split('=')[0] == a.split('=')[0]))",
            "a flag must not be repeated",
            fieldPath=".args",
        ),
    )

    version: (
        Annotated[str, Field(pattern="^[0-9]{1,4}[.][0-9]{1,4}([.][0-9]{1,4})?$", max_length=14)]
        | None
    ) = None
    """vLLM version, such as 0.33."""
    image: (
        Annotated[str, Field(pattern="^[a-z0-9][A-Za-z0-9._:/@-]{0,254}$", max_length=255)] | None
    ) = None
    """Container image; absent: the vLLM release image of that version."""
    args: Annotated[tuple[Argument, ...], Field(max_length=32)] = ()
    """Further flags, one ``--flag=value`` each, from a list of allowed ones."""
    speculative: Speculative | None = None
    """Absent: each step gives each sequence one token."""

    @model_validator(mode="after")
    def _known_version(self) -> "Engine":
        if self.version is None and not re.search(_TAG_VERSION, self.image or "", re.ASCII):
            raise ValueError("version is required unless the image tag is a version")
        flags = [argument.partition("=")[0] for argument in self.args]
        repeated = sorted({flag for flag in flags if flags.count(flag) > 1})
        if repeated:
            raise ValueError(f"args: a flag must not be repeated: {', '.join(repeated)}")
        return self

    @property
    def known_version(self) -> str:
        """The version given, or the one in the image tag."""
        return self.version or (self.image or "").rpartition(":")[2].removeprefix("v")


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


class Pods(ApiModel):
    """The part of the pods that a user decides: a closed set, not a pod template."""

    node_selector: NodeSelector = Field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    model_cache_claim: ResourceName | None = None
    """PersistentVolumeClaim for weights and compile cache."""
    hugging_face_token_secret: SecretKey | None = None
    cpu: Quantity | None = None
    memory: Quantity | None = None
    shared_memory: Quantity = "8Gi"
    """Size limit of /dev/shm."""
    priority_class_name: ResourceName | None = None
    runtime_class_name: ResourceName | None = None


class ScaleTarget(ApiModel):
    """An existing Deployment whose template stays untouched."""

    name: ResourceName
