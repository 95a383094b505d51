"""A check of JSON from strangers before it is read: no NaN, nothing twice, with the line."""

import json
import math
import re
from collections.abc import Iterator
from typing import Final

from tonnage.api.strict_json import unique_keys
from tonnage.cli.console import ManifestError
from tonnage.cli.read.strict_yaml import read_documents

_TOKEN: Final = re.compile(
    r'(?P<text>"(?:[^"\\\n]|\\.)*")(?P<colon>\s*:)?|(?P<number>-?Infinity|NaN|-?[0-9][0-9.eE+-]*)'
)
_DECODER_LIMITS: Final = (RecursionError, ValueError)
"""What the standard decoder raises beside its own error: nesting, or an integer too long."""


def check_json(text: str, *, source: str) -> None:
    """Refuse what JSON readers take in silence or in different ways.

    Raises:
        ManifestError: no JSON object, a key that is given twice, or a number that is not finite;
            with the line.
    """
    for line, key, number in _numbers(text):
        if not math.isfinite(_value(number)):
            raise ManifestError(f"{source}:{line}: {key}: {number[:40]} is no finite number")
    try:
        content = json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        raise ManifestError(f"{source}:{error.lineno}: {error.msg}") from error
    except _DECODER_LIMITS as error:
        read_documents(text, source=source)  # says the same, with the line
        raise ManifestError(f"{source}: {error}") from error
    if not isinstance(content, dict):
        raise ManifestError(f"{source}:1: not a JSON object")


def _numbers(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, the key before it, number as written)."""
    key, line, end = "", 1, 0
    for token in _TOKEN.finditer(text):
        line += text.count("\n", end, token.start())
        end = token.start()
        if token["colon"]:
            key = token["text"].strip('"')
        elif token["number"]:
            yield line, key, token["number"]


def _value(number: str) -> float:
    try:
        return float(number)
    except ValueError:
        return 0.0  # no number at all: the decoder says so, with the line
