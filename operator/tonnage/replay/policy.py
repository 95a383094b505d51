"""What is compared, by name: our own, rivals, and classes of one's own by ``MODULE:CLASS``."""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tonnage.api.spec import Spec
from tonnage.replay.baselines.hpa import Concurrency, SloLaw, epp_queue
from tonnage.replay.baselines.rule import Rule
from tonnage.replay.baselines.wva import Throughput
from tonnage.replay.prometheus import Query
from tonnage.replay.simulation import SETTINGS
from tonnage.sizing.expected import refuses_late, slo_of
from tonnage.units import count_of

Factory = Callable[[float, float], Rule]
"""Makes a fresh rule of the knob's value and the seconds between scrapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One way to scale, with the one knob that it has here."""

    description: str
    knob: str
    default: float
    """As its project ships it, unless its module says otherwise."""
    factory: Factory


RIVALS: Final[Mapping[str, Rival]] = {
    "hpa-concurrency": Rival(
        description="HPA on running and waiting requests of each pod",
        knob="requests of a replica",
        default=32,
        factory=lambda knob, _: Concurrency(target=knob),
    ),
    "keda-epp-queue": Rival(
        description="KEDA on the queue of llm-d's router and on requests running",
        knob="running requests of a replica",
        default=16,
        factory=lambda knob, _: epp_queue(knob),
    ),
    "llmd-slo": Rival(
        description="llm-d's SLO-aware law on KEDA: P90 latencies over their limits",
        knob="share of the limit above which it goes up",
        default=0.55,
        factory=lambda knob, interval_s: SloLaw(threshold=knob, scrape_interval_s=interval_s),
    ),
    "wva-throughput": Rival(
        description="llm-d's WVA, throughput analyzer: output tokens over what a full cache makes",
        knob="utilization above which it goes up",
        default=0.85,
        factory=lambda knob, interval_s: Throughput(load=knob, scrape_interval_s=interval_s),
    ),
}


TONNAGE, IN_TIME, STATIC, BEST_STATIC = "tonnage", "in-time", "static", "best-static"
OWN: Final[Mapping[str, str]] = {
    TONNAGE: "the operator itself, with its default settings",
    IN_TIME: "tonnage with engine.admission: inTime, for all else the same",
    STATIC: "static:N, so many replicas all the time",
    BEST_STATIC: "in hindsight, the smallest constant number that meets the target",
}
OWN_CLASS: Final = "a class of your own, by its Python module; a number after it is handed to it"
DEFAULT: Final = (TONNAGE, IN_TIME, BEST_STATIC)
MOST_REPLICAS: Final = 1 << 9
"""Of a constant fleet."""


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
    if not all(part.isidentifier() for part in (kind, *module.split("."))):
        known = ", ".join((*OWN, *rivals))
        raise UnknownPolicyError(
            f"{text.strip()[:40]!r} is no policy; known are {known}, and MODULE:CLASS is your own"
        )
    policy = Policy(name=name, knob=_number(name, written) if colon else None)
    rule_of(policy, rivals)  # one that cannot be made is refused here
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
    """Return what a replay compares where nothing is asked for: refusals where none are made."""
    hidden: set[str] = set() if slo_of(spec).ttft and not refuses_late(spec) else {IN_TIME}
    return tuple(Policy(name=name) for name in DEFAULT if name not in hidden)


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


def own_rule(text: str, knob: float | None) -> Rule:
    """Return a new object of a class; ``knob``: what it is called with, None: with nothing.

    Raises:
        UnknownPolicyError: with what is wrong.
    """
    kind = _class(text)
    try:
        rule = kind() if knob is None else kind(knob)
    except TypeError as error:
        raise UnknownPolicyError(f"{text} cannot be called so: {error}") from error
    if missing := [name for name in ("interval_s", "table", "replicas") if not hasattr(rule, name)]:
        raise UnknownPolicyError(f"{text} is no policy: it has no {', '.join(missing)}")
    if not isinstance(rule.interval_s, int | float) or not rule.interval_s >= 1:
        raise UnknownPolicyError(
            f"{text}: interval_s is {rule.interval_s!r}, not seconds, at least 1"
        )
    table = rule.table
    if not isinstance(table, Mapping) or not all(isinstance(q, Query) for q in table.values()):
        raise UnknownPolicyError(f"{text}: table is not a mapping of names to Query")
    if not callable(rule.replicas):
        raise UnknownPolicyError(f"{text}: replicas is not a method")
    found: Rule = rule
    return found


def _class(text: str) -> type:
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever a module of others does as it is imported
        raise UnknownPolicyError(f"{module} cannot be imported: {error!r}") from error
    if not isinstance(found, type):
        what = "has no" if found is None else "has no class"
        raise UnknownPolicyError(f"{module} {what} {name}")
    return found
