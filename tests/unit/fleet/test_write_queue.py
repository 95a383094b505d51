"""Writes side by side: what gets no answer holds up nothing but itself."""

import math
import threading

import pytest

from tonnage.cluster.calls import KubernetesError
from tonnage.control.input.writers import WriteKind
from tonnage.control.write.writes import Writes
from tonnage.fleet.background import beside
from tonnage.fleet.write_queue import (
    KIND_WRITERS,
    NAMESPACE_WRITERS,
    NUM_WRITERS,
    DeferredError,
    Pool,
    WriteQueue,
    WriteTimeoutError,
)

PATIENCE_S = 1.0
STATUS = WriteKind.STATUS


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

    def end(self, pool):
        self.over.set()
        for begun in list(pool._begun.values()):
            begun.work.wait()


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def pool(server):
    made = Pool(start=beside, patience_s=PATIENCE_S)
    yield made
    server.end(made)


class TestAPool:
    def test_makes_all_writes_and_tells_what_failed(self):
        refused = KubernetesError("no", status=403)

        failed = Pool(start=beside).run(
            STATUS, lambda each: refused if each.name == "7" else None, some("a", 30)
        )

        assert failed == {("a/7", STATUS): refused}

    def test_is_left_with_what_hangs_in_it_and_the_others_are_written(self, server, pool):
        failed = pool.run(STATUS, server.write, [*some("evil", 200), *some("good", 20)])

        kinds = [type(error) for error in failed.values()]
        assert kinds.count(WriteTimeoutError) == NAMESPACE_WRITERS
        assert kinds.count(DeferredError) == 200 - NAMESPACE_WRITERS
        assert len(server.answered) == 20

    def test_asks_nothing_of_an_object_that_is_still_under_way(self, server, pool):
        [evil] = some("evil", 1)

        pool.run(STATUS, server.write, [evil])
        failed = pool.run(STATUS, server.write, [evil])

        assert server.asked == ["evil/0"]
        assert isinstance(failed["evil/0", STATUS], DeferredError)

    def test_takes_another_write_of_an_object_of_which_one_is_under_way(self, server, pool):
        [evil] = some("evil", 1)

        pool.run(STATUS, server.write, [evil])
        server.hanging = set()
        failed = pool.run(WriteKind.EVENTS, server.write, [evil])

        assert failed == {}
        assert server.asked == ["evil/0", "evil/0"]

    def test_has_room_for_other_kinds_where_one_hangs_in_many_namespaces(self, server):
        queue = WriteQueue(start=beside)
        queue.others.patience_s = 0.2
        server.hanging = {f"evil-{number}" for number in range(9)}

        herd = [each for name in sorted(server.hanging) for each in some(name, 4)]
        queue.run(STATUS, server.write, herd)

        assert len(server.asked) == KIND_WRITERS
        assert queue.run(WriteKind.TEMPLATE, server.write, some("good", 20)) == {}

    def test_waits_for_other_writes_of_a_namespace_of_which_one_kind_hung(self, server, pool):
        pool._slow["evil", STATUS] = {"another": math.inf}
        server.hanging = set()

        assert pool.run(WriteKind.TEMPLATE, server.write, some("evil", 9)) == {}

    def test_gives_one_writer_to_each_namespace_that_hung_before(self, server, pool):
        server.hanging = {f"evil-{number}" for number in range(NUM_WRITERS - 1)}
        for name in sorted(server.hanging):
            pool._slow[name, STATUS] = {"another": math.inf}

        herd = [each for name in sorted(server.hanging) for each in some(name, 50)]
        failed = pool.run(STATUS, server.write, [*herd, *some("good", 20)])

        assert len(server.asked) - 20 == NUM_WRITERS - 1
        assert not {uid for uid, _ in failed if uid.startswith("good")}

    def test_waits_a_moment_for_those_until_an_answer_comes_in_time_again(self, server):
        now = [0.0]
        pool = Pool(start=beside, patience_s=0.4, clock=lambda: now[0])
        pool._slow["evil", STATUS] = {"another": math.inf}

        def write(writes):
            now[0] += 0.1  # more than the moment, less than patience
            server.write(writes)

        failed = pool.run(STATUS, write, some("evil", 1))
        assert isinstance(failed["evil/0", STATUS], WriteTimeoutError)

        server.end(pool)
        now[0] = 3600.0  # until the next tick
        assert pool.run(STATUS, server.write, some("evil", 9)) == {}

    def test_counts_what_was_done_as_done_where_the_last_answer_was_late(self, server, pool):
        pool._slow["evil", STATUS] = {"another": math.inf}
        server.hanging = set()

        assert pool.run(STATUS, server.write, some("evil", 9)) == {}

    def test_tries_another_object_first_where_one_hangs_whenever_it_is_offered(self, server):
        pool = Pool(start=beside, patience_s=0.05)
        hanging, other = some("a", 2)

        def write(writes):
            server.asked.append(writes.name)
            if writes.uid == hanging.uid:
                server.over.wait(30)

        for offered in [[hanging], *[[hanging, other]] * 3]:  # as replicas are, in each tick
            pool.run(STATUS, write, offered)
            server.end(pool)
            server.over.clear()

        assert server.asked[:2] == ["0", "1"]

    def test_tells_of_an_overload_that_showed_after_nobody_waited_any_more(self, server):
        pool = Pool(start=beside, patience_s=0.05)
        busy = KubernetesError("busy", status=429)

        def write(writes):
            server.over.wait(30)  # as a Retry-After that is waited for
            return busy

        failed = pool.run(STATUS, write, some("a", 1))
        server.end(pool)
        pool.run(STATUS, write, [])

        assert [type(error) for error in failed.values()] == [WriteTimeoutError]
        assert pool.take_late() == [busy]
        assert pool.take_late() == []
