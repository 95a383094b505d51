"""What all API types share: strict, closed, frozen, camelCase outside and snake_case inside."""

from typing import Any

from pydantic import ConfigDict
from pydantic.config import JsonDict

from tonnage.described import DescribedModel


class ApiModel(DescribedModel):
    """Base of everything that stands in a ModelDeployment."""

    model_config = ConfigDict(strict=True, serialize_by_alias=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the object as it stands in Kubernetes: camelCase, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def rule(expression: str, message: str, **more: str) -> JsonDict:
    """Return one CEL rule for ``x-kubernetes-validations``."""
    return {"rule": expression, "message": message, **more}


def rules(*all_rules: JsonDict) -> ConfigDict:
    """Return a model config that puts these CEL rules into the CRD schema."""
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": [*all_rules]})
