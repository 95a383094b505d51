"""What was made of a value: once, anew where something else is given, and gone with the value."""

import gc
import weakref
from dataclasses import dataclass, replace

from pydantic import BaseModel

from tonnage.memoize import memoize


@dataclass(frozen=True)
class Plan:
    replicas: int


class Made:
    """What can be told apart, and seen to go."""


@memoize
def made_of(plan, *others):
    return Made()


def test_is_made_once():
    plan = Plan(3)

    assert made_of(plan, "a") is made_of(plan, "a")


def test_is_made_anew_where_another_argument_is_given():
    plan = Plan(3)
    first = made_of(plan, "a")

    assert made_of(plan, "b") is not first
    assert made_of(plan, "b", "c") is not first


def test_a_value_that_was_replaced_has_none():
    plan = Plan(3)
    first = made_of(plan)

    assert made_of(replace(plan, replicas=3)) is not first


def test_a_copy_of_a_model_that_took_it_along_does_not_believe_it():
    class Spec(BaseModel):
        replicas: int

    @memoize
    def told(spec):
        return spec.replicas

    spec = Spec(replicas=3)

    assert told(spec) == 3
    assert told(spec.model_copy(update={"replicas": 4})) == 4


def test_goes_with_the_value():
    plan = Plan(3)
    seen = weakref.ref(made_of(plan))
    del plan
    gc.collect()

    assert seen() is None


def test_two_functions_do_not_meet():
    @memoize
    def other(plan):
        return Made()

    plan = Plan(3)

    assert other(plan) is not made_of(plan)
