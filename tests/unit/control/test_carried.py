"""What was refused is remembered until it was tried again, and not a write longer or shorter."""

from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_memory, a_state, assessed
from tonnage.control.input.memory import Memory, Retry
from tonnage.control.input.writers import Fate
from tonnage.control.write.carried import Carried, with_fates
from tonnage.control.write.writes import Writes

FOREIGN = "Service serving/llama is not ours: it is left alone"
DENIED = "denied by a webhook"
STALE = Carried(scale=Fate.UNDONE)
NO_STATUS = Carried(status=Fate.UNKNOWN, has_failed=True)
OF_CHILDREN = Retry(generation=1, times=4, at_s=NOW_S + 200, is_of_template=False)
OF_TEMPLATE = replace(OF_CHILDREN, is_of_template=True)


def after(fate, *, retry=None, generation=1, is_checked=False, is_applied=False, **known):
    """The memory after writes of which something was refused before; fate None: all was done."""
    state = a_state()
    memory = a_memory(state, retry=retry, **known)
    found = assessed(state, memory=memory)
    writes = Writes(
        namespace="serving",
        name="llama",
        uid=state.view.uid,
        generation=generation,
        template={"kind": "Deployment"} if is_applied else None,
        check_children=is_checked,
    )
    before = Memory(objects={writes.uid: memory})
    told = {writes.uid: (writes, fate)}
    return with_fates(before, {writes.uid: found}, told, before=before, now_s=NOW_S).objects[
        writes.uid
    ]


def test_an_event_for_which_no_time_was_left_is_due_again():
    state = a_state()
    memory = a_memory(state)
    found, uid = assessed(state, memory=memory), state.view.uid
    said = replace(memory.reported, bad={"Stalled": "WriteRefused"}, posted={"WriteRefused": NOW_S})
    after_it = Memory(objects={uid: replace(memory, reported=said)})
    writes = Writes(namespace="serving", name="llama", uid=uid, generation=1)

    def posted(fate):
        told, before = {uid: (writes, fate)}, Memory(objects={uid: memory})
        memory_of = with_fates(after_it, {uid: found}, told, before=before, now_s=NOW_S).objects
        return memory_of[uid].reported.posted

    assert posted(Carried(is_untold=True)) == found.memory.reported.posted == {}
    assert posted(None) == {"WriteRefused": NOW_S}


class TestAPathThatIsAnothers:
    @pytest.mark.parametrize("fate", [None, STALE, NO_STATUS])
    @pytest.mark.parametrize("generation", [1, 2])
    def test_is_remembered_until_children_are_looked_at(self, fate, generation):
        found = after(fate, retry=OF_CHILDREN, generation=generation, no_path=FOREIGN)

        assert found.written.no_path == FOREIGN

    def test_is_remembered_where_a_template_alone_was_applied(self):
        found = after(None, retry=OF_CHILDREN, is_applied=True, no_path=FOREIGN)

        assert (found.written.no_path, found.written.retry) == (FOREIGN, OF_CHILDREN)

    @pytest.mark.parametrize("fate", [None, STALE])
    def test_is_over_once_they_were_looked_at(self, fate):
        assert after(fate, is_checked=True, no_path=FOREIGN).written.no_path is None

    @pytest.mark.parametrize(
        "fate",
        [
            Carried(template=Fate.UNDONE),
            Carried(template=Fate.UNDONE, has_failed=True, refused=DENIED),
            NO_STATUS,
        ],
    )
    def test_is_not_over_by_a_look_that_may_have_ended_before_it(self, fate):
        assert after(fate, is_checked=True, no_path=FOREIGN).written.no_path == FOREIGN

    def test_is_told_anew(self):
        fate = Carried(no_path=FOREIGN, is_pointless=True)

        assert after(fate, is_checked=True).written.no_path == FOREIGN


class TestARefusedWrite:
    @pytest.mark.parametrize("retry", [OF_CHILDREN, OF_TEMPLATE])
    @pytest.mark.parametrize("fate", [None, STALE, NO_STATUS])
    def test_is_remembered_until_it_is_tried_again(self, fate, retry):
        found = after(fate, retry=retry, problem=DENIED)

        assert (found.written.problem, found.written.retry) == (DENIED, retry)

    def test_of_a_child_is_not_over_by_a_template_that_was_taken(self):
        found = after(None, retry=OF_CHILDREN, is_applied=True, problem=DENIED)

        assert found.written.problem == DENIED

    def test_is_not_over_where_the_next_attempt_was_held_back(self):
        fate = Carried(template=Fate.UNDONE)
        found = after(fate, retry=OF_TEMPLATE, is_applied=True, problem=DENIED)

        assert found.written.problem == DENIED

    @pytest.mark.parametrize("fate", [None, STALE])
    def test_is_over_once_it_was_taken(self, fate):
        of_template = after(fate, retry=OF_TEMPLATE, is_applied=True, problem=DENIED)
        of_children = after(fate, retry=OF_CHILDREN, is_checked=True, problem=DENIED)

        assert of_template.written.problem is None
        assert of_children.written.problem is None

    def test_of_a_spec_that_is_another_now_is_over(self):
        found = after(None, retry=OF_TEMPLATE, generation=2, problem=DENIED)

        assert (found.written.problem, found.written.retry) == (None, None)

    def test_of_replicas_or_a_status_is_over_by_the_next_that_is_taken(self):
        assert after(None, problem=DENIED).written.problem is None
