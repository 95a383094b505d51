"""What failed is remembered until it was tried again, and not a write longer or shorter."""

from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_memory, a_state, assessed, failures
from tonnage.control.input.writers import Cause, Fate, Result, WriteKind
from tonnage.control.write.writes import Writes, with_object_results

FOREIGN = "Service serving/llama exists, not made by Tonnage: unchanged"
DENIED = "denied by a webhook"
STALE = {WriteKind.SCALE: Result()}
NO_STATUS = {WriteKind.STATUS: Result(fate=Fate.UNKNOWN)}
OF_CHILDREN = failures(WriteKind.CHILDREN, DENIED)
OF_TEMPLATE = failures(WriteKind.TEMPLATE, DENIED)
NO_PATH = failures(WriteKind.CHILDREN, FOREIGN, cause=Cause.NO_PATH)


def after(results, *, generation=1, is_checked=False, is_applied=False, **known):
    """The memory after writes of which something failed before."""
    state = a_state()
    memory = a_memory(state, **known)
    found = assessed(state, memory=memory)
    writes = Writes(
        namespace="serving",
        name="llama",
        uid=state.view.uid,
        generation=generation,
        template={"kind": "Deployment"} if is_applied else None,
        check_children=is_checked,
    )
    return with_object_results(memory, found, writes, results, now_s=NOW_S).written


def test_an_event_for_which_no_time_was_left_is_due_again():
    state = a_state()
    memory = a_memory(state)
    found, uid = assessed(state, memory=memory), state.view.uid
    said = replace(memory.reported, bad={"Stalled": "WriteRefused"}, posted={"WriteRefused": NOW_S})
    after_it = replace(memory, reported=said)
    writes = Writes(namespace="serving", name="llama", uid=uid, generation=1)

    def posted(results):
        known = with_object_results(after_it, found, writes, results, now_s=NOW_S)
        return known.reported.posted

    assert posted({WriteKind.EVENTS: Result()}) == found.memory.reported.posted == {}
    assert posted({}) == {"WriteRefused": NOW_S}


class TestAPathThatIsAnothers:
    @pytest.mark.parametrize("results", [{}, STALE, NO_STATUS])
    @pytest.mark.parametrize("generation", [1, 2])
    def test_is_remembered_until_children_are_looked_at(self, results, generation):
        found = after(results, failures=NO_PATH, generation=generation)

        assert found.said_of(Cause.NO_PATH) == FOREIGN

    def test_is_remembered_where_a_template_alone_was_applied(self):
        assert after({}, failures=NO_PATH, is_applied=True).failures == NO_PATH

    @pytest.mark.parametrize("results", [{}, STALE, NO_STATUS])
    def test_is_over_once_they_were_looked_at(self, results):
        assert after(results, is_checked=True, failures=NO_PATH).said_of(Cause.NO_PATH) is None

    def test_is_not_over_where_the_template_failed_that_comes_before_it(self):
        results = {WriteKind.TEMPLATE: Result(), WriteKind.CHILDREN: Result()}

        assert after(results, is_checked=True, failures=NO_PATH).said_of(Cause.NO_PATH) == FOREIGN

    def test_is_told_anew(self):
        results = {WriteKind.CHILDREN: Result(cause=Cause.NO_PATH, detail=FOREIGN)}

        found = after(results, is_checked=True)
        assert (found.said_of(Cause.NO_PATH), found.problem) == (FOREIGN, None)


class TestAWriteThatFailed:
    @pytest.mark.parametrize("known", [OF_CHILDREN, OF_TEMPLATE])
    @pytest.mark.parametrize("results", [{}, STALE, NO_STATUS])
    def test_is_remembered_until_it_is_tried_again(self, results, known):
        found = after(results, failures=known)

        assert (found.problem, found.failures) == (DENIED, known)

    def test_is_over_where_it_is_not_wanted_again_when_its_wait_ends(self):
        late = failures(WriteKind.TEMPLATE, cause=Cause.FAILED, at_s=NOW_S)

        assert after({}, failures=late).failures == {}

    def test_of_a_child_is_not_over_by_a_template_that_was_taken(self):
        assert after({}, failures=OF_CHILDREN, is_applied=True).problem == DENIED

    def test_is_not_over_where_the_next_attempt_was_held_back(self):
        results = {WriteKind.TEMPLATE: Result()}

        assert after(results, failures=OF_TEMPLATE, is_applied=True).problem == DENIED

    @pytest.mark.parametrize("results", [{}, STALE])
    def test_is_over_once_it_was_taken(self, results):
        of_template = after(results, failures=OF_TEMPLATE, is_applied=True)
        of_children = after(results, failures=OF_CHILDREN, is_checked=True)

        assert of_template.failures == of_children.failures == {}

    def test_of_a_spec_that_is_another_now_is_over(self):
        assert after({}, failures=OF_TEMPLATE, generation=2).failures == {}

    def test_of_replicas_is_over_when_none_are_wanted_any_more(self):
        assert after({}, failures=failures(WriteKind.SCALE)).failures == {}

    def test_is_counted_in_a_row_and_for_its_kind_alone(self):
        refused = {WriteKind.TEMPLATE: Result(cause=Cause.REFUSED, detail=DENIED)}

        again = after(refused, failures=OF_TEMPLATE | NO_PATH, is_applied=True)

        assert again.failures[WriteKind.TEMPLATE].times == 2
        assert again.failures[WriteKind.CHILDREN] == NO_PATH[WriteKind.CHILDREN]

    @pytest.mark.parametrize(("times", "problem"), [(1, None), (2, DENIED)])
    def test_calls_for_a_person_where_it_is_no_refusal_but_lasts(self, times, problem):
        failed = {WriteKind.TEMPLATE: Result(cause=Cause.FAILED, detail=DENIED)}
        known = failures(WriteKind.TEMPLATE, cause=Cause.FAILED, times=times)

        assert after(failed, failures=known, is_applied=True).problem == problem

    def test_leaves_what_was_to_be_looked_at_due(self):
        later = {WriteKind.CHILDREN: Result()}

        assert after(later, is_checked=True).children_checked_at_s is None
