"""Plain data of others, in which anything may be absent or something else."""

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]


def block(content: object, *keys: str) -> Object:
    """Return a nested mapping; one that is absent, or no mapping, is empty."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content if isinstance(content, Mapping) else {}


def objects(content: Object, key: str) -> list[Object]:
    """Return a list of mappings; absent: none."""
    found = content.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
