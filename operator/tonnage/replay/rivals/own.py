"""A policy of one's own: a class by ``MODULE:CLASS``, made anew for each run."""

import importlib
from collections.abc import Mapping

from tonnage.replay.query import Query
from tonnage.replay.rivals.rule import Rule


class NoPolicyError(ValueError):
    """No class of that name can scale."""


def is_class_name(text: str) -> bool:
    """Tell whether a text is ``MODULE:CLASS``.

    >>> is_class_name("my.policies:PerPod"), is_class_name("static:4")
    (True, False)
    """
    module, _, name = text.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def own_rule(text: str, knob: float | None) -> Rule:
    """Return a new object of a class; ``knob``: what it is called with, None: with nothing.

    Raises:
        NoPolicyError: with what is wrong.
    """
    kind = _class(text)
    try:
        rule = kind() if knob is None else kind(knob)
    except TypeError as error:
        raise NoPolicyError(f"{text} cannot be called so: {error}") from error
    if missing := [name for name in ("interval_s", "table", "replicas") if not hasattr(rule, name)]:
        raise NoPolicyError(f"{text} is no policy: it has no {', '.join(missing)}")
    if not isinstance(rule.interval_s, int | float) or not rule.interval_s >= 1:
        raise NoPolicyError(f"{text}: interval_s is {rule.interval_s!r}, not seconds, at least 1")
    table = rule.table
    if not isinstance(table, Mapping) or not all(isinstance(q, Query) for q in table.values()):
        raise NoPolicyError(f"{text}: table is not a mapping of names to Query")
    if not callable(rule.replicas):
        raise NoPolicyError(f"{text}: replicas is not a method")
    found: Rule = rule
    return found


def _class(text: str) -> type:
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever a module of others does as it is imported
        raise NoPolicyError(f"{module} cannot be imported: {error!r}") from error
    if not isinstance(found, type):
        what = "has no" if found is None else "has no class"
        raise NoPolicyError(f"{module} {what} {name}")
    return found
