"""What is compared, by name: our own, rivals, and classes of one's own."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tonnage.api.spec import Spec
from tonnage.replay.hindsight import MOST_REPLICAS
from tonnage.replay.rivals.own import NoPolicyError, is_class_name, own_rule
from tonnage.replay.rivals.registry import RIVALS, Rival
from tonnage.replay.rivals.rule import Rule
from tonnage.replay.scenario import SETTINGS
from tonnage.sizing.expected import newest_first_s, refuses_late, slo_of
from tonnage.units import count_of

TONNAGE, STATIC, STATIC_PEAK, STAIRCASE = "tonnage", "static", "static-peak", "staircase"
NEWEST_FIRST, IN_TIME = "newest-first", "in-time"
OWN: Final[Mapping[str, str]] = {
    TONNAGE: "the operator itself, with its default settings",
    NEWEST_FIRST: "tonnage with engine.queue: newestFirst, for all else the same",
    IN_TIME: "tonnage with engine.admission: inTime, for all else the same",
    STATIC: "static:N, so many replicas all the time",
    STATIC_PEAK: "in hindsight, the smallest constant number that meets the target",
    STAIRCASE: "in hindsight, replicas by 5 minutes, Ready in time: what there is to win",
}
OWN_CLASS: Final = "a class of your own, by its Python module; a number after it is handed to it"
OTHER_QUEUES: Final[Mapping[str, tuple[str, str]]] = {
    NEWEST_FIRST: ("queue", "newestFirst"),
    IN_TIME: ("admission", "inTime"),
}
"""By policy, the field of the engine and its value."""
DEFAULT: Final = (TONNAGE, *OTHER_QUEUES, STATIC_PEAK, STAIRCASE)


class UnknownPolicyError(ValueError):
    """No policy of that name, or it takes no such number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy, and the value of its knob; None: its default, or it has none."""

    name: str
    knob: float | None = None

    def __str__(self) -> str:
        return self.name if self.knob is None else f"{self.name}:{self.knob:g}"


def policy_of(text: str, rivals: Mapping[str, Rival] = RIVALS) -> Policy:
    """Read a name, or a class of one's own, with or without a number after a colon.

    Raises:
        UnknownPolicyError: with what is wrong.
    """
    name, colon, written = text.strip().partition(":")
    if name in OWN or name in rivals:
        return _known(name, colon, written)
    module, _, rest = text.strip().partition(":")
    kind, colon, written = rest.partition(":")
    name = f"{module}:{kind}"
    if not is_class_name(name):
        known = ", ".join((*OWN, *rivals))
        raise UnknownPolicyError(
            f"{text.strip()[:40]!r} is no policy; known are {known}, and MODULE:CLASS is your own"
        )
    policy = Policy(name=name, knob=_number(name, written) if colon else None)
    try:
        rule_of(policy, rivals)
    except NoPolicyError as error:
        raise UnknownPolicyError(str(error)) from error
    return policy


def _known(name: str, colon: str, written: str) -> Policy:
    if not colon:
        if name == STATIC:
            raise UnknownPolicyError("static needs a number of replicas: static:4")
        return Policy(name=name)
    if name in OWN and name != STATIC:
        raise UnknownPolicyError(f"{name} takes no number")
    return Policy(name=name, knob=_number(name, written))


def rule_of(policy: Policy, rivals: Mapping[str, Rival] = RIVALS) -> Rule:
    """Return a fresh rule of a rival, or of a class of one's own."""
    rival = rivals.get(policy.name)
    if rival is None:
        return own_rule(policy.name, policy.knob)
    knob = rival.default if policy.knob is None else policy.knob
    return rival.factory(knob, SETTINGS.scrape_interval_s)


def _number(name: str, written: str) -> float:
    try:
        knob = float(written)
    except ValueError:
        knob = math.nan
    is_number = math.isfinite(knob) and knob > 0
    if not is_number or (name == STATIC and (knob != int(knob) or knob > MOST_REPLICAS)):
        what = (
            f"a number of replicas up to {MOST_REPLICAS}" if name == STATIC else "a number above 0"
        )
        raise UnknownPolicyError(f"{name}:{written[:40]} is not {what}")
    return knob


def default_policies(spec: Spec) -> tuple[Policy, ...]:
    """Return what a replay compares where nothing is asked for: no other queue where none is."""
    runs = {NEWEST_FIRST} if newest_first_s(spec) else set()
    runs |= {IN_TIME} if refuses_late(spec) else set()
    left_out = runs if slo_of(spec).ttft else OTHER_QUEUES.keys()
    return tuple(Policy(name=name) for name in DEFAULT if name not in left_out)


def description_of(policy: Policy) -> str:
    """Return what a policy is with the number that it was given."""
    if policy.name == STATIC:
        return f"{count_of(int(policy.knob or 1), 'replica')} all the time"
    if rival := RIVALS.get(policy.name):
        number = rival.default if policy.knob is None else policy.knob
        return f"{rival.description} ({rival.knob}: {number:g})"
    return OWN.get(policy.name, OWN_CLASS)


def descriptions() -> dict[str, str]:
    """Return what each policy is, in a line; ours first, a constant fleet among them."""
    rivals = {name: description_of(Policy(name=name)) for name in RIVALS}
    return {**OWN, **rivals, "MODULE:CLASS": OWN_CLASS}
