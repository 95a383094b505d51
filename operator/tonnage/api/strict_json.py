"""What is refused of JSON that users write."""

from collections import Counter
from typing import Any


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, as ``object_pairs_hook`` of the decoder, which alone takes the last of two.

    Raises:
        ValueError: a key is given twice.
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{key:.100} is given twice")
    return content
