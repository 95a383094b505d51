"""The base of what users write: closed, frozen, camelCase outside and snake_case inside."""

import ast
import inspect
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

__all__ = ["DescribedModel"]


class DescribedModel(BaseModel):
    """Text under a field describes it in the JSON schema, and is read only when one is asked for.

    pydantic's own ``use_attribute_docstrings`` reads the sources of every class when it is
    imported, a tenth of the time until a command begins. Validators are built at first use too.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
        defer_build=True,
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in _texts_under_fields(cls).items():
            properties[cls.model_fields[name].alias]["description"] = text
        return schema


def _texts_under_fields(model: type[BaseModel]) -> dict[str, str]:
    """Return {name of a field: the text under it} of the fields that the class itself declares."""
    found = {}
    [source] = ast.parse(dedent(inspect.getsource(model))).body
    for statements in pairwise(ast.iter_child_nodes(source)):
        match statements:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                found[name] = inspect.cleandoc(text)
    return found
