"""The field types of the spec: every string and number has a pattern and a bound."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from tonnage.api.base import rule
from tonnage.units import DURATION_PATTERN

_HUB_PART = "[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_VALUE = '(=[A-Za-z0-9._:/,+@{}\\[\\]" -]{1,200})?'
ALLOWED_FLAGS = (
    "async-scheduling",
    "no-async-scheduling",
    "chat-template-content-format",
    "enable-auto-tool-choice",
    "enable-expert-parallel",
    "enable-mfu-metrics",
    "enable-prefix-caching",
    "no-enable-prefix-caching",
    "enforce-eager",
    "generation-config",
    "limit-mm-per-prompt",
    "load-format",
    "performance-mode",
    "reasoning-parser",
    "safetensors-load-strategy",
    "seed",
    "served-model-name",
    "tokenizer-mode",
    "tool-call-parser",
)
"""Flags of vLLM that a user may add. Those that decide capacity are Tonnage's own."""

ResourceName = Annotated[
    str, Field(pattern="^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", max_length=253)
]
LabelValue = Annotated[
    str, Field(pattern="^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$", max_length=63)
]
Quantity = Annotated[str, Field(pattern="^[1-9][0-9]{0,8}(m|k|M|G|T|Ki|Mi|Gi|Ti)?$", max_length=12)]
Tokens = Annotated[int, Field(ge=1, le=16_777_216)]
Duration = Annotated[
    str,
    Field(pattern=DURATION_PATTERN, max_length=10),
    Field(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule("duration(self) <= duration('1h')", "must be at most 1h")
            ]
        }
    ),
]
RATE_PATTERN = "^[0-9]{1,9}([.][0-9]{1,4})?$"
_RATE_RULE = rule(
    f"type(self) == int ? self > 0 : (string(self).matches('{RATE_PATTERN}') "
    "&& double(string(self)) > 0.0)",
    'must be a positive whole number, or a string such as "0.5"',
)
Rate = Annotated[
    int | str,
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 14,
            "x-kubernetes-validations": [_RATE_RULE],
        }
    ),
]


ARGUMENT_PATTERN = f"^--({'|'.join(ALLOWED_FLAGS)}){_VALUE}$"
Argument = Annotated[str, Field(pattern=ARGUMENT_PATTERN, max_length=240)]
HubId = Annotated[str, Field(pattern=f"^{_HUB_PART}/{_HUB_PART}$", max_length=193)]
