"""What all API types share: strict, closed, frozen, camelCase outside and snake_case inside."""

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict


class ApiModel(BaseModel):
    """Base of everything that stands in a ModelDeployment."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the object as it stands in Kubernetes: camelCase, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def rule(expression: str, message: str, **more: str) -> JsonDict:
    """Return one CEL rule for ``x-kubernetes-validations``."""
    return {"rule": expression, "message": message, **more}


def rules(*all_rules: JsonDict) -> ConfigDict:
    """Return a model config that puts these CEL rules into the CRD schema."""
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": [*all_rules]})
