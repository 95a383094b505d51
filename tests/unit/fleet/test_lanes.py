"""Writes side by side: what gets no answer holds up nothing but itself."""

import threading
from dataclasses import replace

import pytest

from tonnage.cluster.errors import KubernetesError
from tonnage.control.write.writes import Writes
from tonnage.fleet.aside import beside
from tonnage.fleet.lanes import NAMESPACE_WRITERS, NUM_WRITERS, Lane, LateError, LeftError

PATIENCE_S = 1.0


def some(namespace, number):
    return [
        Writes(namespace=namespace, name=str(each), uid=f"{namespace}/{each}")
        for each in range(number)
    ]


class Server:
    """Answers, but for the namespaces that hang until the test is over."""

    def __init__(self):
        self.hanging, self.over = {"evil"}, threading.Event()
        self.asked, self.answered = [], []

    def write(self, writes):
        self.asked.append(writes.label)
        if writes.namespace in self.hanging:
            self.over.wait(30)
        self.answered.append(writes.label)

    def end(self, lane):
        self.over.set()
        for begun in list(lane._begun.values()):
            begun.work.wait()


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def lane(server):
    made = Lane(start=beside, patience_s=PATIENCE_S)
    yield made
    server.end(made)


class TestALane:
    def test_makes_all_writes_and_tells_what_failed(self):
        refused = KubernetesError("no", status=403)

        failed = Lane(start=beside).run(
            lambda each: refused if each.name == "7" else None, some("a", 30)
        )

        assert failed == {"a/7": refused}

    def test_is_left_with_what_hangs_in_it_and_the_others_are_written(self, server, lane):
        failed = lane.run(server.write, [*some("evil", 200), *some("good", 20)])

        kinds = [type(error) for error in failed.values()]
        assert kinds.count(LateError) == NAMESPACE_WRITERS
        assert kinds.count(LeftError) == 200 - NAMESPACE_WRITERS
        assert len(server.answered) == 20

    def test_asks_nothing_of_an_object_that_is_still_under_way(self, server, lane):
        [evil] = some("evil", 1)

        lane.run(server.write, [evil])
        failed = lane.run(server.write, [evil])

        assert server.asked == ["evil/0"]
        assert isinstance(failed["evil/0"], LeftError)

    def test_gives_one_writer_to_each_namespace_that_hung_before(self, server, lane):
        server.hanging = {f"evil-{number}" for number in range(NUM_WRITERS - 1)}
        for name in sorted(server.hanging):
            lane._slow[name] = {}

        herd = [each for name in sorted(server.hanging) for each in some(name, 50)]
        failed = lane.run(server.write, [*herd, *some("good", 20)])

        assert len(server.asked) - 20 == NUM_WRITERS - 1
        assert not {uid for uid in failed if uid.startswith("good")}

    def test_waits_for_none_of_those_until_an_answer_comes_in_time_again(self, server):
        now = [0.0]
        lane = Lane(start=beside, patience_s=30.0, clock=lambda: now[0])
        lane._slow["evil"] = {}

        failed = lane.run(server.write, some("evil", 1))
        assert isinstance(failed["evil/0"], LateError)

        server.end(lane)
        now[0] = 3600.0  # until the next tick
        assert lane.run(server.write, some("evil", 9)) == {}

    def test_tries_another_object_first_where_one_hangs_whenever_it_is_offered(self, server):
        lane = Lane(start=beside, patience_s=0.05)
        hanging, other = some("a", 2)

        def write(writes):
            server.asked.append(writes.name)
            if writes.uid == hanging.uid:
                server.over.wait(30)

        for offered in [[hanging], *[[hanging, other]] * 3]:  # as replicas are, in each tick
            lane.run(write, offered)
            server.end(lane)
            server.over.clear()

        assert server.asked[:2] == ["0", "1"]

    def test_tells_of_an_overload_that_showed_after_nobody_waited_any_more(self, server):
        lane = Lane(start=beside, patience_s=0.05)
        busy = KubernetesError("busy", status=429)

        def write(writes):
            server.over.wait(30)  # as a Retry-After that is waited for
            return busy

        failed = lane.run(write, some("a", 1))
        server.end(lane)
        lane.run(write, [])

        assert [type(error) for error in failed.values()] == [LateError]
        assert lane.take_late() == [busy]
        assert lane.take_late() == []

    def late_twice(self, server, *, generations=(1, 1), is_of_one_write=True):
        """Return what the second write tells, where the first was refused too late."""
        lane = Lane(start=beside, patience_s=0.05, is_of_one_write=is_of_one_write)
        [first] = some("a", 1)

        def write(_):
            server.over.wait(30)
            return KubernetesError("too large", status=413)

        for generation in generations:
            failed = lane.run(write, [replace(first, generation=generation)])
            server.end(lane)
            server.over.clear()
        return failed[first.uid]

    def test_tells_of_a_refusal_that_came_late_when_the_next_answer_is_late_too(self, server):
        error = self.late_twice(server)

        assert isinstance(error, LateError)
        assert error.is_refusal
        assert error.words == "too large"
        assert not error.is_undone  # this one may yet be carried out

    def test_tells_of_none_of_another_spec_or_another_write(self, server):
        assert not self.late_twice(server, generations=(1, 2)).is_refusal
        assert not self.late_twice(server, is_of_one_write=False).is_refusal
