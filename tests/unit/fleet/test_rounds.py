"""What a tick waits for, and what it decides by meanwhile."""

import threading

import pytest

from fleet_builders import a_manifest
from loop_builders import served, show, tick
from tonnage.cluster.calls import KubernetesError
from tonnage.cluster.kube import MODEL_DEPLOYMENTS
from tonnage.cluster.queries import Answers
from tonnage.fleet.background import BackgroundTask, beside
from tonnage.fleet.scrape import Rounds
from tonnage.settings import Settings

OBJECT = MODEL_DEPLOYMENTS.path("serving", "llama")
EVERY_S, REUSABLE_S = 15.0, 30.0


class Later:
    """Keeps what is to run until a test lets it."""

    def __init__(self):
        self.waiting = []

    def __call__(self, work):
        self.waiting.append(work)

    def run(self):
        self.waiting.pop(0)()


class Asked:
    """Rounds at a time that a test tells."""

    def __init__(self, *, answers=Answers(), start=None):  # noqa: B008 - a value
        self.now_s, self.news, self.later = 0.0, threading.Event(), Later()
        self.rounds = Rounds(
            ask=lambda *_: answers() if callable(answers) else answers,
            settings=Settings(prometheus_url="http://prometheus.test:9090", scrape_interval_s=10),
            work=BackgroundTask(start or self.later),
            clock=lambda: self.now_s,
        )

    def begin(self, *, ended=False):
        self.rounds.begin(lambda *_: {}, [], self.now_s, self.news)
        if ended:
            self.later.run()
        return self


class Quiet(threading.Event):
    """No news in the time that is waited for them; then something ``ends``."""

    def __init__(self, ends):
        super().__init__()
        self.ends, self.waited_s = ends, []

    def wait(self, timeout=None):
        self.waited_s.append(timeout)
        self.ends()
        return False


class Unheeded(threading.Event):
    """News for which nobody may wait."""

    def wait(self, timeout=None):
        raise AssertionError(timeout)


class TestRounds:
    def test_the_first_is_due_at_once_and_each_other_an_interval_after_the_one_before(self):
        asked = Asked()

        assert asked.rounds.is_due
        asked.begin(ended=True)
        asked.rounds.take(0)
        assert (asked.rounds.is_due, asked.rounds.due_in_s) == (False, EVERY_S)
        asked.now_s = EVERY_S
        assert asked.rounds.is_due

    def test_one_is_under_way_at_most(self):
        asked = Asked().begin()
        asked.now_s = 100.0

        assert not asked.rounds.is_due

    def test_is_due_where_the_clock_was_set_back(self):
        asked = Asked()
        asked.now_s = 1000.0
        asked.begin(ended=True).rounds.take(0)
        asked.now_s = 10.0

        assert asked.rounds.is_due

    def test_answers_are_handed_over_once_and_are_of_when_they_were_asked_for(self):
        asked = Asked(answers=Answers(bytes_read=7)).begin()
        assert asked.rounds.take(0) is None
        asked.now_s = 8.0
        asked.later.run()
        asked.now_s = 10.0

        assert asked.rounds.take(0).bytes_read == 7
        assert asked.rounds.take(0) is None
        assert asked.rounds.held_s == 10.0

    def test_the_end_of_a_round_is_news(self):
        asked = Asked().begin()
        assert not asked.news.is_set()

        asked.later.run()

        assert asked.news.is_set()

    def test_a_change_is_decided_without_the_round_while_the_last_answers_are_young(self):
        asked = Asked().begin(ended=True)
        asked.rounds.take(0)
        asked.now_s = REUSABLE_S - 1
        asked.begin()
        asked.news.set()

        asked.rounds.wait(asked.news)  # comes back: nothing would end the round

        assert asked.rounds.is_reusable
        asked.now_s = REUSABLE_S
        assert not asked.rounds.is_reusable

    def test_a_change_is_waited_for_no_longer_than_answers_are_young(self):
        asked = Asked().begin(ended=True)
        asked.rounds.take(0)
        asked.now_s = REUSABLE_S - 10
        asked.begin()
        quiet = Quiet(asked.later.run)

        asked.rounds.wait(quiet)  # comes back since the round ended after that

        assert quiet.waited_s == [10.0]

    def test_one_that_does_not_even_begin_is_asked_again(self):
        def no_thread(_):
            raise RuntimeError("can't start new thread")

        asked = Asked(start=no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            asked.begin()

        asked.now_s = EVERY_S
        assert asked.rounds.is_due

    def test_the_first_round_is_waited_for_whatever_changes(self):
        asked = Asked(answers=Answers(bytes_read=7), start=beside)
        asked.news = Unheeded()
        asked.begin()

        asked.rounds.wait(asked.news)

        assert asked.rounds.take(0).bytes_read == 7

    def test_a_bug_in_a_round_is_met_in_the_tick_and_the_next_one_is_asked(self):
        def broken():
            raise RuntimeError("a bug")

        asked = Asked(answers=broken).begin(ended=True)

        with pytest.raises(RuntimeError, match="a bug"):
            asked.rounds.take(0)
        asked.now_s = EVERY_S
        assert asked.rounds.is_due

    def test_nothing_of_before_is_known_to_who_begins_anew(self):
        asked = Asked().begin(ended=True)
        asked.rounds.forget()

        assert (asked.rounds.is_due, asked.rounds.take(0), asked.rounds.is_reusable) == (
            True,
            None,
            False,
        )
        assert asked.rounds.due_in_s == EVERY_S  # where nobody asks, nothing is waited for

    def test_a_round_of_who_led_before_is_none_of_the_next_lead(self):
        asked = Asked(start=beside).begin()
        asked.rounds.forget()

        assert (asked.rounds.take(0), asked.rounds.is_reusable) == (None, False)


class Hanging:
    """A loop at rest whose questions to Prometheus go on until a test ends them."""

    def __init__(self):
        self.loop, self.world = served()
        self.later = self.loop.observer.rounds.work.start = Later()

    def change(self, **spec):
        status = self.world.kube.objects[OBJECT]["status"]
        self.world.kube.put(OBJECT, a_manifest(generation=2, **spec) | {"status": status})

    def tick(self, *, after_s):
        """Let time pass and something change; return what is written."""
        self.loop.store.changed.set()
        return tick(self.loop, self.world, after_s=after_s)

    def hear(self, *, after_s):
        """Let time pass, and a round begin and end; return what is written."""
        self.world.now_s += after_s
        self.loop.observer.begin_round(
            self.loop.store.snapshot(), self.world.now_s, self.loop.store.changed
        )
        self.later.run()
        return tick(self.loop, self.world, after_s=0)

    @property
    def remembered(self):
        [memory] = self.loop.memory.objects.values()
        return memory


class TestWhileARoundGoesOn:
    def test_a_change_is_carried_out(self):
        hanging = Hanging()
        hanging.change(pods={"cpu": "3"})

        done = hanging.tick(after_s=15)

        assert "apply deployments/llama" in done
        assert len(hanging.later.waiting) == 1

    def test_what_changes_a_moment_later_is_carried_out_with_it(self):
        hanging = Hanging()

        def one_more():
            hanging.change(pods={"cpu": "3"})
            show(hanging.loop, hanging.world)

        hanging.loop.gather = one_more

        assert "apply deployments/llama" in hanging.tick(after_s=15)

    def test_a_change_waits_for_no_slow_one_after_another(self):
        """Rounds of 20 s, the longest that there are: the answers of before are 39 s old."""
        hanging = Hanging()
        hanging.tick(after_s=15)
        hanging.world.now_s += 20
        hanging.later.run()
        hanging.tick(after_s=0)
        hanging.change(pods={"cpu": "3"})

        done = hanging.tick(after_s=19)

        assert "apply deployments/llama" in done
        assert len(hanging.later.waiting) == 1

    def test_no_other_begins_and_the_loop_comes_back_to_it_at_once(self):
        hanging = Hanging()

        done = [hanging.tick(after_s=15), hanging.tick(after_s=10)]

        assert (done, len(hanging.later.waiting)) == ([[], []], 1)
        assert hanging.loop.pause_s() == 0

    def test_what_was_said_before_is_told_once(self):
        hanging, told = Hanging(), []
        hanging.loop.observer.tell = told.append

        hanging.tick(after_s=15)
        assert told == []
        hanging.later.run()
        hanging.tick(after_s=1)
        hanging.tick(after_s=1)

        assert len(told) == 1

    def test_no_window_is_counted_later_than_it_was_said(self):
        hanging, said_at_s = Hanging(), set()
        for _ in range(20):
            hanging.hear(after_s=15)
            said_at_s.add(hanging.world.now_s)
            hanging.tick(after_s=20)
            said_at_s.add(hanging.world.now_s)  # then it was asked
            hanging.tick(after_s=5)
            hanging.world.now_s += 3
            hanging.later.run()
            tick(hanging.loop, hanging.world, after_s=0)
        counted = {each.at_s for each in hanging.remembered.traffic.counted}
        new = {at_s for at_s in counted if at_s >= min(said_at_s)}

        assert len(new) > 3
        assert new <= said_at_s
        assert hanging.remembered.goodput.judged_at_s in said_at_s

    def test_figures_are_as_old_as_they_are(self):
        hanging = Hanging()
        hanging.tick(after_s=15)
        hanging.tick(after_s=10)
        fleet = hanging.loop.observer.observe(
            hanging.loop.store.snapshot(), hanging.loop.memory.calibrations, hanging.world.now_s
        )

        [state] = fleet.models
        assert {(each.age_s, each.held_s) for each in state.engines} == {(5.0, 25.0)}
        assert fleet.windows_end_s == hanging.world.now_s - 25


def test_between_rounds_the_loop_waits_until_the_next_is_due():
    loop, world = served()
    tick(loop, world)
    paused_s = loop.pause_s()
    loop.store.changed.set()
    tick(loop, world, after_s=6)

    assert (paused_s, loop.pause_s()) == (EVERY_S, EVERY_S - 6)


def test_what_begins_to_lead_anew_asks_first():
    hanging = Hanging()
    hanging.loop.start_leading()

    assert hanging.loop.observer.rounds.is_due
    assert not hanging.loop.observer.rounds.is_reusable


def test_a_loop_that_asks_anew_decides_by_nothing_that_was_said_before():
    loop, world = served()
    tick(loop, world)
    loop.observer.forget()
    fleet = loop.observer.observe(
        loop.store.snapshot(), loop.memory.calibrations, world.now_s + 10_000
    )

    assert [state.engines for state in fleet.models] == [()]


def test_a_tick_that_failed_is_tried_again_after_a_while():
    loop, world = served()
    tick(loop, world)
    world.now_s += EVERY_S

    def broken(*_):
        raise RuntimeError("a bug")

    loop.observer.ask, loop.observer.rounds.ask = broken, broken
    with pytest.raises(RuntimeError, match="a bug"):
        loop.tick()

    assert loop.pause_s() == EVERY_S


def test_what_begins_to_lead_anew_reads_the_lists_of_today():
    loop, world = served()
    loop.lists.work.begin(lambda: {"serving": "could not be read in the lead before"})
    loop.start_leading()
    tick(loop, world)

    assert loop.lists.unlisted == {}
    assert loop.lists.checked_at_s == world.now_s


def test_a_tick_that_cannot_read_the_lists_leaves_no_news_behind():
    loop, world = served()

    def unreachable():
        raise KubernetesError("the API server is away", status=503)

    loop.lists.work.begin(unreachable)
    world.now_s += EVERY_S
    loop.store.changed.set()
    with pytest.raises(KubernetesError):
        loop.tick()

    assert not loop.store.changed.is_set()


def test_where_the_last_object_goes_while_a_round_goes_on_nothing_is_waited_for():
    hanging = Hanging()
    hanging.tick(after_s=15)
    hanging.world.kube.objects.clear()
    hanging.later.run()
    hanging.tick(after_s=1)

    assert hanging.loop.pause_s() > 0
