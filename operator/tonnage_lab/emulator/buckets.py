"""Bounds of vLLM's histograms, by family, and what ``--custom-histogram-buckets`` makes of them."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Final

Bounds = Mapping[str, Sequence[float]]

DEFAULTS: Final[Bounds] = {
    "request_latency": (
        0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60,
        120, 240, 480, 960, 1920, 7680,
    ),
    "time_to_first_token": (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
        20, 40, 80, 160, 640, 2560,
    ),
    "inter_token_latency": (
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
        20, 40, 80,
    ),
    "iteration_tokens": (1, 8, *(1 << exponent for exponent in range(4, 15))),
    "request_params_n": (1, 2, 5, 10, 20),
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
}  # fmt: skip
"""Families with fixed bounds; seconds, tokens or counts by family."""

FAMILIES: Final = frozenset(DEFAULTS) | {"request_tokens", "kv_cache_residency"}


def one_two_five(maximum: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, 20 ... up to a maximum.

    >>> one_two_five(60)
    (1, 2, 5, 10, 20, 50)
    """
    bounds: list[int] = []
    decade = 1
    while decade <= maximum:
        bounds += [each * decade for each in (1, 2, 5) if each * decade <= maximum]
        decade *= 10
    return tuple(bounds)


def parse_custom(text: str) -> dict[str, tuple[float, ...]]:
    """Read the JSON object of ``--custom-histogram-buckets``.

    Raises:
        ValueError: not such an object, an unknown family, or bounds that are not positive,
            finite and strictly increasing.

    >>> parse_custom('{"inter_token_latency": [0.01, 0.02]}')
    {'inter_token_latency': (0.01, 0.02)}
    """
    families = json.loads(text)
    if not isinstance(families, dict):
        raise ValueError(f"expected an object of families, not {text}")  # noqa: TRY004 -- of a flag
    for family, bounds in families.items():
        if family not in FAMILIES:
            raise ValueError(f"unknown bucket family {family!r}, known: {sorted(FAMILIES)}")
        if not _is_ladder(bounds):
            raise ValueError(
                f"{family}: {bounds} must be positive, finite and strictly increasing numbers"
            )
    return {family: tuple(bounds) for family, bounds in families.items()}


def _is_ladder(bounds: object) -> bool:
    if not isinstance(bounds, list) or not bounds:
        return False
    if not all(isinstance(each, int | float) and math.isfinite(each) for each in bounds):
        return False
    return bounds[0] > 0 and all(low < high for low, high in itertools.pairwise(bounds))


def effective(custom: Bounds, *, max_model_len: int) -> dict[str, Sequence[float]]:
    """Return the bounds of every family; ``request_tokens`` depends on the longest request."""
    return {**DEFAULTS, "request_tokens": one_two_five(max_model_len), **custom}
