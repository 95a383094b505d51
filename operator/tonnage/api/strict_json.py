"""JSON of others, read to the letter."""

import json
import math
from collections import Counter
from typing import Any


def read_json(text: str, *, is_finite: bool = True) -> Any:
    """Return the content of a JSON document.

    ``is_finite``: refuse ``Infinity`` and ``NaN``, which Python writes and JSON has not.

    Raises:
        ValueError: it is none, nests too deep, has a key twice or a number that is not finite.
    """
    number = _finite if is_finite else float
    try:
        return json.loads(
            text, object_pairs_hook=unique_keys, parse_constant=number, parse_float=number
        )
    except RecursionError as error:
        raise ValueError("it nests too deep") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, as ``object_pairs_hook`` of the decoder, which alone takes the last of two.

    Raises:
        ValueError: a key is given twice.
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {key!r:.100} is given twice")
    return content


def _finite(written: str) -> float:
    number = float(written)
    if not math.isfinite(number):
        raise ValueError(f"{written:.100} is not a number that JSON has")
    return number
