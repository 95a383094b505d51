"""Memoize per instance: what was last computed from an immutable value is held by that value."""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple

__all__ = ["memoize"]

Owner = TypeVar("Owner")
Others = TypeVarTuple("Others")
Made = TypeVar("Made")


def memoize(function: Callable[[Owner, *Others], Made]) -> Callable[[Owner, *Others], Made]:
    """Decorate a function of immutable values: the last result stays with the first of them.

    It is returned again where the others equal those of then. It goes when the first one does, and
    no copy of that has it: a pydantic one takes it along, and does not believe it.

    >>> class Plan: pass
    >>> calls = []
    >>> @memoize
    ... def cost(plan, price): calls.append(price); return 2 * price
    >>> plan = Plan()
    >>> cost(plan, 3), cost(plan, 3), cost(plan, 4), calls
    (6, 6, 8, [3, 4])
    """
    name = f"memoized {function.__module__}.{function.__qualname__}"

    @wraps(function)
    def once(owner: Owner, *others: *Others) -> Made:
        known = owner.__dict__.get(name)
        if known is not None and known[0] == id(owner) and known[1] == others:
            made: Made = known[2]
            return made
        made = function(owner, *others)
        owner.__dict__[name] = id(owner), others, made
        return made

    return once
