"""One table of conditions: what is said of them anywhere is derived of it."""

import ast
from pathlib import Path

import pytest

import tonnage
from fleet_builders import a_fleet, a_state, assessed
from tonnage.api.status import Condition, Status
from tonnage.control.input.memory import ReportMemory
from tonnage.control.report.conditions import CONDITION_TYPES, JOINED, problem_of
from tonnage.control.report.event_records import event_records
from tonnage.control.report.reasons import CONDITIONS
from tonnage.control.report.status import facts, report

CONTROL = Path(tonnage.__file__).parent / "control"
RANKED = sorted((each for each in CONDITION_TYPES.values() if each.rank), key=lambda x: x.rank)


def a_bad_one(kind):
    return Condition(
        type=kind.name, status=kind.bad_when, reason="Bad", message="m",
        last_transition_time="2026-01-01T00:00:00Z",
    )  # fmt: skip


def names_in(literal):
    return CONDITION_TYPES.keys() & {
        each.value for each in ast.iter_child_nodes(literal) if isinstance(each, ast.Constant)
    }


def test_each_type_is_explained_once():
    assert CONDITIONS.keys() == CONDITION_TYPES.keys()
    assert len({each.rank for each in RANKED}) == len(RANKED) == 13


def test_no_other_module_of_control_lists_types_of_conditions():
    collections = (ast.Set, ast.Tuple, ast.List, ast.Dict)
    listing = {
        path.name
        for path in CONTROL.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, collections) and len(names_in(node)) > 1
    }

    assert listing == {"reasons.py"}


@pytest.mark.parametrize("kind", CONDITION_TYPES.values(), ids=CONDITION_TYPES)
def test_the_table_says_what_has_an_event(kind):
    told, _ = event_records(
        ReportMemory(), [a_bad_one(kind)], scaling=None, rolling=None, now_s=1e9
    )

    assert bool(told) == (kind.has_event and kind.rank > 0)


def test_the_problem_is_the_bad_condition_of_the_lowest_rank():
    bad = [a_bad_one(each) for each in RANKED]

    for rank, kind in enumerate(RANKED):
        assert problem_of(reversed(bad[rank:])).type == kind.name


def test_what_has_no_rank_is_no_problem():
    rest = [each for each in CONDITION_TYPES.values() if not each.rank]

    assert problem_of(map(a_bad_one, rest)) is None
    assert [each.name for each in rest] == ["Reconciling", "ScalingLimited"]


def test_a_status_has_conditions_in_the_order_of_the_table():
    state = a_state()
    told = [each.type for each in report(assessed(state), a_fleet(state)).status.conditions]

    assert told == [kind for kind in CONDITION_TYPES if kind in told]
    assert len(told) > 10


def test_those_of_roles_are_those_that_the_table_joins():
    assert set(JOINED) == {each.name for each in CONDITION_TYPES.values() if each.is_joined}
    assert set(JOINED) == {
        "CapacityAvailable",
        "ScalingActive",
        "Approved",
        "SLOMet",
        "ErrorBudget",
    }


def test_each_of_them_is_a_fact_of_a_status_and_no_other_is():
    told = (
        Condition(
            type=kind,
            status="True",
            reason="r",
            message="",
            last_transition_time="2026-11-22T09:00:00Z",
        )
        for kind in (*CONDITION_TYPES, "Other")
    )

    assert {kind for kind, *_ in facts(Status(conditions=tuple(told)))[-1]} == set(CONDITION_TYPES)
