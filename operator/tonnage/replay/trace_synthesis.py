"""A trace drawn of what was counted: as many requests in each step, as long as in each window.

Within a step requests come by chance. Prompts and answers are drawn by themselves: whether long
prompts had long answers was not counted.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from tonnage.engine.chance import Chance
from tonnage.replay.measured_traffic import WINDOW_STEPS, CountedError, MeasuredTraffic, Spread
from tonnage.replay.trace_file import MOST_REQUESTS
from tonnage.replay.traces import Trace
from tonnage.units import MILLION

FIRST_SEED: Final = 15_000
"""Beyond those that synthetic traffic is drawn with."""
PLACES: Final = (0.02, 0.98)
"""Between which the place of the mean in its bins is believed."""


def trace_of(found: MeasuredTraffic, *, longest_tokens: int, seed: int = 0) -> Trace:
    """Draw requests as many and as long as those counted. ``longest_tokens``: of any of them.

    Raises:
        CountedError: they are more than a trace may have, or less than one.
    """
    expected = sum(found.requests)
    if expected > MOST_REQUESTS:
        message = f"{expected / MILLION:.0f} million requests came, {MOST_REQUESTS / MILLION:g}"
        raise CountedError(f"{message} million are replayed at most: ask for a shorter time")
    chance = Chance(FIRST_SEED + seed)
    prompts = [_Lengths.of(each, longest_tokens) for each in found.prompts]
    outputs = [_Lengths.of(each, longest_tokens) for each in found.outputs]
    arrival_s, prompt_tokens, output_tokens = array("d"), array("q"), array("q")
    for step, requests in enumerate(found.requests):
        number, window = int(requests + chance.share()), step // WINDOW_STEPS
        places = sorted(chance.shares(number))
        arrival_s.extend((step + place) * found.span.step_s for place in places)
        prompt_tokens.extend(prompts[window].draw(chance) for _ in range(number))
        output_tokens.extend(outputs[window].draw(chance) for _ in range(number))
    if not arrival_s:
        raise CountedError("less than one request came in this time")
    return Trace(arrival_s=arrival_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    """What lengths are drawn from: a bin by its count, and a place within it."""

    lows: Sequence[float]
    highs: Sequence[float]
    below: Sequence[float]
    """Requests in bins up to each."""
    power: float
    """Of a uniform share: places in bins have the mean then that makes the mean length right."""

    @classmethod
    def of(cls, spread: Spread, longest_tokens: int) -> "_Lengths":
        lows, highs = spread.bounds[:-1], _close_bins(spread.bounds[1:], longest_tokens)
        below = list(accumulate(spread.counts))
        least, most = (
            sum(count * bound for count, bound in zip(spread.counts, bounds, strict=True))
            for bounds in (lows, highs)
        )
        place = (spread.mean_tokens * below[-1] - least) / (most - least)
        lowest, highest = PLACES
        return cls(
            lows=lows, highs=highs, below=below, power=1 / min(highest, max(lowest, place)) - 1
        )

    def draw(self, chance: Chance) -> int:
        number = bisect_right(self.below, chance.share() * self.below[-1])
        low, high = (bounds[min(number, len(bounds) - 1)] for bounds in (self.lows, self.highs))
        within: float = chance.share() ** self.power
        return max(1, round(low + (high - low) * within))


def _close_bins(bounds: Sequence[float], longest_tokens: int) -> list[float]:
    """Return the upper bounds of bins; of the open one the longest that there may be."""
    last = max((each for each in bounds if each < math.inf), default=0.0)
    return [each if each < math.inf else max(last, longest_tokens) for each in bounds]
