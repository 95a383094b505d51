"""The field types of the spec: every string and number has a pattern and a bound."""

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic.config import JsonDict

from tonnage.api.base import RULES, Checked, rule
from tonnage.api.pod_rules import rules
from tonnage.units import hint, seconds

_HUB_PART = "[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_VALUE = '(=[A-Za-z0-9._:/,+@={}\\[\\]" -]{1,200})?'
ALLOWED_FLAGS = (
    "allow-deprecated-quantization",
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
    "hf-overrides",
    "limit-mm-per-prompt",
    "load-format",
    "lora-modules",
    "performance-mode",
    "reasoning-parser",
    "safetensors-load-strategy",
    "scheduling-policy",
    "seed",
    "served-model-name",
    "tokenizer-mode",
    "tool-call-parser",
    "trust-remote-code",
)
"""Flags of vLLM that a user may add. Those that decide capacity are Tonnage's own."""

SET_ELSEWHERE = {
    "dtype": "model.weights sets it",
    "quantization": "model.weights sets it",
    "kv-cache-dtype": "model.kvCache sets it",
    "revision": "model.revision sets it",
    "model": "model.id sets it",
    "max-model-len": "contextLength sets it",
    "tensor-parallel-size": "hardware.gpusPerReplica sets it",
    "pipeline-parallel-size": "hardware.gpusPerReplica sets it",
    "data-parallel-size": "hardware.gpusPerReplica sets it",
    "speculative-config": "engine.speculative sets it",
    "api-key": "pods.apiKeySecret sets it",
    "hf-token": "pods.huggingFaceTokenSecret sets it",
    "max-num-seqs": "Tonnage computes it from the SLO",
    "max-num-batched-tokens": "engine.maxNumBatchedTokens sets it",
    "gpu-memory-utilization": "Tonnage uses vLLM's default",
    "kv-cache-memory-bytes": "Tonnage computes the size of the KV cache",
    "kv-offloading-size": "model.kvOffload sets it",
    "kv-offloading-backend": "model.kvOffload sets it",
    "kv-transfer-config": "engine.role sets it",
    "enable-lora": "model.adapters sets it",
    "max-loras": "model.adapters sets it",
    "max-lora-rank": "model.adapters sets it",
    "max-num-queued-reqs": "engine.admission sets it",
    "max-num-queued-tokens": "engine.admission sets it",
    "host": "Tonnage sets it",
    "port": "Tonnage sets it",
}
"""Flags that are refused, and what decides about them instead."""
DECIDED_ELSEWHERE = SET_ELSEWHERE | {
    "gpus": "hardware.gpusPerReplica sets it",
    "itl": "slo.timePerOutputToken sets it",
    "qps": "demand.requestsPerSecond sets it",
    "replicas": "Tonnage computes it, from scaling.minReplicas to scaling.maxReplicas",
    "rps": "demand.requestsPerSecond sets it",
    "tpot": "slo.timePerOutputToken sets it",
    "ttft": "slo.timeToFirstToken sets it",
}
"""The same, with what others call fields of the spec."""
NAMED_BY_OTHERS = frozenset({"demand", "engine", "hardware", "model", "scaling", "slo"})
"""Parts of a spec in which such names are written, and beside which."""


def flag_refusal(argument: str) -> str:
    """Say in a line why a flag is refused.

    >>> flag_refusal("--max-model-len=8192")
    '--max-model-len is not allowed in engine.args: contextLength sets it'
    """
    flag = argument.partition("=")[0]
    name = flag.lstrip("-").replace("_", "-")
    if name in ALLOWED_FLAGS:
        return f"write {flag} as --{name} or --{name}=VALUE, one argument each"
    known = f"the allowed flags are {', '.join(ALLOWED_FLAGS)}"
    return f"{flag} is not allowed in engine.args: {SET_ELSEWHERE.get(name, known)}"


ResourceName = Annotated[
    str, Field(pattern="^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", max_length=253)
]
LabelValue = Annotated[
    str, Field(pattern="^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$", max_length=63)
]
Quantity = Annotated[
    str,
    Field(
        pattern="^([1-9][0-9]{0,8}(m|k|M|G|Ki|Mi|Gi)?|[1-9][0-9]{0,5}Ti?)$",
        max_length=12,
    ),
]
"""Below 2^63: the API server stores what is more as that, which would look like an edit."""
OperatorClass = Annotated[str, Field(pattern="^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", max_length=63)]
Tokens = Annotated[int, Field(ge=1, le=16_777_216)]


def _duration(pattern: str, message: str, *, most: str, least: str = "") -> Checked:
    """Return the check of durations up to one, from another on.

    One rule and no pattern: the API server would call duration() where a pattern fails too.
    """
    least_s, most_s = seconds(least) if least else 0.0, seconds(most)

    def check(value: str) -> str:
        if re.fullmatch(pattern, value) and least_s <= seconds(value) <= most_s:
            return value
        raise ValueError(f"{message}{hint(value)}")

    from_least = f"duration(self) >= duration('{least}') && " if least else ""
    up_to_most = f"duration(self) <= duration('{most}')"
    return Checked(
        check, (rule(f"self.matches('{pattern}') && {from_least}{up_to_most}", message),)
    )


_DURATION = "^(([1-9][0-9]{0,6}([.][0-9]{1,3})?|0[.]0{0,2}[1-9][0-9]{0,2})(ms|s|m)|1h)$"
_LONG_DURATION = "^[1-9][0-9]{0,4}(m|h)$"
Duration = Annotated[
    str,
    Field(max_length=10),
    _duration(_DURATION, "must be a duration such as 50ms, 1.5s or 5m, at most 1h", most="1h"),
]
LongDuration = Annotated[
    str,
    Field(max_length=6),
    _duration(_LONG_DURATION, "must be a duration such as 30m or 2h, at most 168h", most="168h"),
]
Window = Annotated[
    str,
    Field(max_length=6),
    _duration(_LONG_DURATION, "must be from 1h to 168h, such as 24h", most="168h", least="1h"),
]


def _int_or_string(max_length: int, written: JsonDict) -> WithJsonSchema:
    return WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "maxLength": max_length, RULES: [written]}
    )


def _number_check(pattern: str, message: str) -> BeforeValidator:
    """Return what takes a positive number: a whole one, or a string, since specs have no floats."""

    def checked(value: object) -> object:
        is_number = isinstance(value, int | str) and not isinstance(value, bool)
        if not is_number or not re.fullmatch(pattern, text := str(value)) or float(text) <= 0:
            raise ValueError(message)
        return value

    return BeforeValidator(checked)


_RATE = (
    "^[0-9]{1,12}([.][0-9]{1,4})?$",
    'must be a positive whole number of at most 12 digits, or a string such as "0.5" '
    "with at most 4 decimals",
)
_RATE_RULE = rule(
    f"type(self) == int ? self > 0 && string(self).matches('{_RATE[0]}') : "
    f"string(self).matches('{_RATE[0]}') && double(string(self)) > 0.0",
    _RATE[1],
)
Rate = Annotated[int | str, _number_check(*_RATE), _int_or_string(17, _RATE_RULE)]
_PERCENT = (
    "^[5-9][0-9]([.][0-9]{1,2})?$",
    'must be from 50 to 99, or a string such as "99.5" with at most 2 decimals',
)
_PERCENT_RULE = rule(f"string(self).matches('{_PERCENT[0]}')", _PERCENT[1])
Percent = Annotated[int | str, _number_check(*_PERCENT), _int_or_string(16, _PERCENT_RULE)]
_LABEL_NAME_PATTERN = (
    "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
LabelName = Annotated[str, Field(pattern=_LABEL_NAME_PATTERN, max_length=317)]
_SELECTOR_MESSAGE = "every key must be a valid label name, such as example.com/team"


def _checked_selector(value: dict[str, str]) -> dict[str, str]:
    if not all(re.fullmatch(_LABEL_NAME_PATTERN, name) for name in value):
        raise ValueError(_SELECTOR_MESSAGE)
    return value


_NAMES = Checked(
    _checked_selector,
    (rule(f"self.all(name, name.matches('{_LABEL_NAME_PATTERN}'))", _SELECTOR_MESSAGE),),
)
NodeSelector = Annotated[dict[str, LabelValue], Field(max_length=16), _NAMES]
AnnotationValue = Annotated[str, Field(max_length=1024)]


def _not_reserved(reserved: str, what: str) -> Checked:
    """Return the check that refuses our own keys by name."""

    def check(value: dict[str, str]) -> dict[str, str]:
        ours = sorted(name for name in value if re.fullmatch(reserved, name))
        if ours:
            raise ValueError(f"{what} {ours[0]} is reserved and must not be set")
        return value

    taken = f"name.matches('^({reserved})$')"
    named = f"'{what} ' + self.filter(name, {taken})[0] + ' is reserved and must not be set'"
    message = f"this {what} is reserved and must not be set"
    written = rule(f"!self.exists(name, {taken})", message, messageExpression=named)
    return Checked(check, (written,))


PodLabels = Annotated[
    dict[str, LabelValue],
    Field(max_length=16),
    _NAMES,
    _not_reserved(rules()["names"]["labels"], "label"),
]
PodAnnotations = Annotated[
    dict[str, AnnotationValue],
    Field(max_length=16),
    _NAMES,
    _not_reserved(rules()["names"]["annotations"], "annotation"),
]
_SHARE_PATTERN = "^([1-9][0-9]{0,2}|[1-9][0-9]?%)$"
_SHARE_MESSAGE = "must be a number of pods from 1 to 999, or a percentage from 1% to 99%"


def _checked_share(value: object) -> object:
    is_text = isinstance(value, str) and value.endswith("%")
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not (is_text or is_number) or not re.fullmatch(_SHARE_PATTERN, str(value)):
        raise ValueError(_SHARE_MESSAGE)
    return value


_SHARE_RULE = rule(
    "type(self) == int ? self >= 1 && self <= 999 : string(self).matches('^[1-9][0-9]?%$')",
    _SHARE_MESSAGE,
)
PodShare = Annotated[int | str, BeforeValidator(_checked_share), _int_or_string(8, _SHARE_RULE)]


ARGUMENT_PATTERN = f"^--({'|'.join(ALLOWED_FLAGS)}){_VALUE}$"
Argument = Annotated[str, Field(pattern=ARGUMENT_PATTERN, max_length=240)]
_FOLDER = "(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+"  # RE2 refuses what repeats 1,000 times or more
ModelId = Annotated[str, Field(pattern=f"^({_HUB_PART}/{_HUB_PART}|{_FOLDER})$", max_length=193)]
Revision = Annotated[str, Field(pattern="^[A-Za-z0-9]([.]?[A-Za-z0-9_/-]){0,99}$", max_length=100)]
"""Commit, tag or branch: it cannot climb out of a folder, nor look like a flag."""
