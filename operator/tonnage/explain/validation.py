"""What a plan takes for granted until something was measured, and what would confirm it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tonnage.sizing.plan import Sizing
from tonnage.sizing.provenance import Figure, Origin
from tonnage.sizing.request import spread_of
from tonnage.units import format_bytes, format_s, significant

TRUSTED: Final = frozenset({Origin.GIVEN, Origin.MEASURED})
ON_START: Final = "what the engine logs when it starts"
FIRST_POD: Final = "the KV tokens that the first Ready replica reports"
STEP_TIMES: Final = "step times under load, at a small batch and at a large one"
A_RUN: Final = "a run of this class under load"
PREFILL_TIMES: Final = "time to first token on an idle replica, for a long prompt"
CONFIRMED_BY: Final = {
    Figure.LENGTHS: "the prompt and output tokens that running engines count",
    Figure.SPREAD: "the histograms of prompt and output tokens of running engines",
    Figure.ARRIVALS: "the arrivals of a usual day, and what routes them",
    Figure.GPU: f"{ON_START}; {STEP_TIMES}",
    Figure.WEIGHTS: ON_START,
    Figure.KV_CACHE: ON_START,
    Figure.ENGINE: FIRST_POD,
    Figure.SPEED: STEP_TIMES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unconfirmed:
    """One figure that only a measurement can confirm."""

    name: str
    value: str
    origin: str
    """looked up, guessed, or estimated: worked out from other figures."""
    confirmed_by: str

    def to_dict(self) -> dict[str, str]:
        named = {"name": self.name, "value": self.value, "origin": self.origin}
        return {**named, "confirmedBy": self.confirmed_by}


def unconfirmed_figures(sizing: Sizing) -> tuple[Unconfirmed, ...]:
    """Return every figure that was neither given nor measured, in the order of the plan."""
    return (*_inputs(sizing), *_speeds(sizing), *_memory(sizing))


def _inputs(sizing: Sizing) -> Iterator[Unconfirmed]:
    for each in sizing.request.inputs:
        if each.origin not in TRUSTED:
            yield Unconfirmed(
                name=each.name,
                value=each.value,
                origin=each.origin.value,
                confirmed_by=CONFIRMED_BY.get(each.figure, A_RUN),
            )


def _speeds(sizing: Sizing) -> Iterator[Unconfirmed]:
    spread = spread_of(sizing.request)
    yield Unconfirmed(
        name="prefill efficiency",
        value=significant(sizing.request.speed.prefill_efficiency),
        origin="looked up",
        confirmed_by=PREFILL_TIMES,
    )
    yield Unconfirmed(
        name="TPOT",
        value=f"{format_s(sizing.at_capacity.tpot_s)}, 80% prediction interval +-{spread:.0%}",
        origin="estimated",
        confirmed_by=STEP_TIMES,
    )


def _memory(sizing: Sizing) -> Iterator[Unconfirmed]:
    """Yield the cache and those parts beside it that are not counted but fitted."""
    if sizing.request.measured_kv_tokens is not None:
        return
    if sizing.budget.given_pool is None:
        yield _kv_tokens(sizing)
    for part in sizing.budget.parts:
        if part.name != "weights" and part.spread_bytes:
            yield Unconfirmed(
                name=part.name,
                value=_within(part.num_bytes, part.spread_bytes),
                origin="estimated",
                confirmed_by=ON_START,
            )


def _within(num_bytes: float, spread_bytes: float) -> str:
    """Write an amount with its 90 % interval, of which nothing is below zero."""
    if spread_bytes < num_bytes:
        return f"{format_bytes(num_bytes)}, {format_bytes(spread_bytes)} either way"
    return f"{format_bytes(num_bytes)}, at most {format_bytes(num_bytes + spread_bytes)}"


def _kv_tokens(sizing: Sizing) -> Unconfirmed:
    low, high = sizing.kv_tokens_range
    between = f", 90% interval {low:,.0f} to {high:,.0f}" if low < high else ""
    return Unconfirmed(
        name="KV tokens",
        value=f"{sizing.kv_tokens:,.0f} a replica{between}",
        origin="estimated",
        confirmed_by=FIRST_POD,
    )
