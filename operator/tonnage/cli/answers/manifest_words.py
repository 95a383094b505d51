"""A manifest as text that says of each part what it is for."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from tonnage.sizing.provenance import Figure

WIDE: Final = 200
"""Columns: no value is broken over lines."""
COMMENTS: Final[Mapping[str, str]] = {
    "model": "What is served; weights and kvCache, such as fp8, may be set here too.",
    "hardware": "A class of 'tonnage catalog gpus'; without gpusPerReplica the cheapest is chosen.",
    "contextLength": "The longest request promised, prompt and answer, in tokens.",
    "slo": "Latency targets: p50, p90, p95 or p99. Absent: offline.",
    "demand": "Expected traffic until it is measured; p99 may be set beside each mean.",
    "scaling": "Never unbounded. mode: Recommend creates nothing; Auto and Approve run it.",
    "engine": "The version of vLLM: flags, memory and metric names depend on it.",
}
GUESSES: Final = {
    "contextLength": Figure.CONTEXT,
    "demand": Figure.LENGTHS,
    "engine": Figure.ENGINE,
}


def with_comments(content: Mapping[str, Any], guessed: frozenset[Figure]) -> str:
    """Return a manifest with a comment over each part of its spec; guesses are called so."""
    head = {key: value for key, value in content.items() if key != "spec"}
    lines = [*_yaml(head), "spec:"]
    for name, value in content["spec"].items():
        lines += [f"  # {comment}" for comment in _comments(name, guessed)]
        lines += [f"  {line}" for line in _yaml({name: value})]
    return "\n".join(lines)


def _comments(name: str, guessed: frozenset[Figure]) -> Iterator[str]:
    if name in COMMENTS:
        yield COMMENTS[name]
    if GUESSES.get(name) in guessed:
        yield "A guess: nobody gave it."


def _yaml(content: Mapping[str, Any]) -> list[str]:
    """Return the lines of a mapping; what is nested twice or more is written in braces."""
    lines: list[str] = []
    for key, value in content.items():
        text: str = yaml.safe_dump(
            {key: value},
            sort_keys=False,
            width=WIDE,
            default_flow_style=None if isinstance(value, dict | list) else False,
        )
        lines += text.splitlines()
    return lines
