"""What all API types share: strict, closed, frozen, camelCase outside and snake_case inside."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple, Self

from pydantic import ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, core_schema

from tonnage.described import DescribedModel

GROUP: Final = "tonnage.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "ModelDeployment"
PLURAL: Final = "modeldeployments"
RULES = "x-kubernetes-validations"
SHARED: Final = lru_cache(maxsize=4096)(set[str])
"""One set for all objects that were given the same fields: it is as large as one of them."""


class Rule(NamedTuple):
    """What an object must keep: in CEL for the API server, as a function for all others."""

    cel: str
    message: str
    """Parts in brackets hold figures as ``{}``; without any they are left out."""
    holds: Callable[[Any], object] | None
    """None: only the API server can tell, which has the object of before."""
    field: str = ""
    """Below the object, such as ``engine.role``."""
    figures: tuple[tuple[str, Callable[[Any], object]], ...] = ()
    """Of the message, in CEL and as functions; empty CEL: the API server leaves them out."""

    def to_cel(self) -> JsonDict:
        """Return the rule for ``x-kubernetes-validations``."""
        more = {"fieldPath": f".{self.field}"} if self.field else {}
        given = [cel for cel, _ in self.figures if cel]
        if given:
            text = re.sub(r"[\[\]]", "", self.message).replace("{}", "%d")
            more = {"messageExpression": f"'{text}'.format([{', '.join(given)}])", **more}
        return rule(self.cel, re.sub(r"\[.*?\]", "", self.message), **more)

    def broken_by(self, found: Any) -> str | None:
        """Say how an object breaks the rule; None: it keeps it."""
        if self.holds is None or self.holds(found):
            return None
        where = f"{self.field}: " if self.field else ""
        text = re.sub(r"[\[\]]", "", self.message)
        return where + text.format(*(figure(found) for _, figure in self.figures))


class ApiModel(DescribedModel):
    """Base of everything that stands in a ModelDeployment."""

    model_config = ConfigDict(strict=True, serialize_by_alias=True)
    rules: ClassVar[tuple[Rule, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the object as it stands in Kubernetes: camelCase, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @model_validator(mode="after")
    def _keeps_rules(self) -> Self:
        names = SHARED(frozenset(self.model_fields_set))
        object.__setattr__(self, "__pydantic_fields_set__", names)
        if broken := [found for each in self.rules if (found := each.broken_by(self))]:
            raise ValueError("; ".join(broken))
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        if cls.rules:
            handler.resolve_ref_schema(schema)[RULES] = [each.to_cel() for each in cls.rules]
        return schema


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """Beside a type of values: a check of them, which raises, and what says the same in CEL."""

    check: Callable[[Any], Any]
    rules: tuple[JsonDict, ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        found = handler(schema)
        return found | {RULES: [*found.get(RULES, []), *self.rules]}


def matches(pattern: str, message: str, *, but: str = "") -> Checked:
    """Return the check of texts by a pattern, which the API server has as a rule with this message.

    ``but``: a pattern of those that are refused all the same.
    """

    def check(value: str) -> str:
        is_refused = but and re.fullmatch(but, value)
        if is_refused or not re.fullmatch(pattern, value, re.ASCII):
            raise ValueError(message)
        return value

    others = f" && !self.matches('^({but})$')" if but else ""
    return Checked(check, (rule(f"self.matches('{pattern}'){others}", message),))


def rule(expression: str, message: str, **more: str) -> JsonDict:
    """Return one CEL rule for ``x-kubernetes-validations``."""
    return {"rule": expression, "message": message, **more}
