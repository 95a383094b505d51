"""Who is searched for first: namespaces in turn, in each the one that waits longest."""

from fleet_builders import NOW_S, a_fleet, a_manifest, a_memory, a_state
from tonnage.control.input.memory import Memory
from tonnage.control.size.fair_order import changed_before_others, search_in_fair_order
from tonnage.control.tick import tick
from tonnage.sizing.errors import SearchAbandonedError


def a_plan(name, namespace, *, context=8192):
    """An object that is new, in a mode that writes nothing."""
    scaling = {"mode": "Recommend", "minReplicas": 1, "maxReplicas": 8}
    body = a_manifest(name, namespace=namespace, contextLength=context, scaling=scaling)
    return a_state(body, replicas=None)


def order(waiting, *, changed=()):
    """Names of objects in turn; ``waiting``: (namespace, name, since when it waits).

    ``changed``: names of those whose spec has no answer yet.
    """
    states = [a_plan(name, namespace) for namespace, name, _ in waiting]
    objects = {
        state.view.uid: a_memory(
            state, waiting_since_s=since_s, generation=0 if name in changed else 1
        )
        for state, (_, name, since_s) in zip(states, waiting, strict=True)
    }
    return "".join(each.view.name for each in search_in_fair_order(states, objects))


def test_who_waits_longest_comes_first_and_who_does_not_wait_last():
    assert order([("blue", "a", None), ("blue", "b", 20), ("blue", "c", 10)]) == "cba"


def test_namespaces_take_turns():
    crowd = [("blue", name, 10) for name in "abcd"]

    assert order([*crowd, ("green", "x", 500), ("red", "y", None)]) == "axybcd"


def test_what_changed_comes_first():
    waiting = [("blue", "a", 10), ("blue", "b", None), ("blue", "c", 30), ("green", "x", 5)]

    assert order(waiting, changed=["b"]) == "bxac"
    assert order(waiting, changed=["b", "c"]) == "cxba"


def test_who_changes_many_leaves_each_namespace_its_turn():
    edited = [("blue", name, None) for name in "abcd"]

    assert order([*edited, ("green", "x", 5), ("green", "y", 5)], changed="abcd") == "axbycd"


def test_changes_leave_time_where_others_wait_alone():
    first, second = a_plan("a", "blue"), a_plan("b", "green")
    fresh = {each.view.uid: a_memory(each, generation=0) for each in (first, second)}
    waits = a_memory(second, generation=1, waiting_since_s=5.0)

    assert changed_before_others([first, second], fresh) == frozenset()
    assert changed_before_others([first, second], fresh | {waits.uid: waits}) == {first.view.uid}


def test_a_crowd_of_one_namespace_does_not_hold_up_another():
    crowd = [a_plan(f"m{n}", "blue", context=8192 + 64 * n) for n in range(200)]
    victim = a_plan("victim", "green", context=9000)
    left = iter([None] * 60)

    def time_for_a_few():
        if next(left, "spent"):
            raise SearchAbandonedError("spent")

    first = tick(a_fleet(*crowd), Memory(), on_search=spent)
    fleet = a_fleet(*crowd, victim, now_s=NOW_S + 15)
    outcome = tick(fleet, first.memory, on_search=time_for_a_few)

    waiting = [each.state.view.name for each in outcome.found if each.pending]
    assert len(waiting) >= 190
    assert "victim" not in waiting


def test_a_crowd_of_2000_holds_up_no_change_of_another_namespace():
    changed = a_plan("changed", "green")
    crowd = [a_plan(f"m{n}", "blue") for n in range(2000)]
    objects = {
        each.view.uid: a_memory(each, waiting_since_s=float(number))
        for number, each in enumerate([*crowd, changed])
    }

    turns = [each.view.name for each in search_in_fair_order([*crowd, changed], objects)]

    assert turns.index("changed") < 2


def spent():
    raise SearchAbandonedError("spent")
