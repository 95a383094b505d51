"""What is asked in a tick, in how many parts, and what is said of what failed."""

import logging
import threading

from tonnage.cluster.queries import Answers
from tonnage.fleet.scrape import Rounds, describe, nothing_decides
from tonnage.settings import Settings

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
LATE = ("QueryTimeout", "no full answer within 10 s")


def expressions(namespaces, has_history):
    of = f"of {'|'.join(namespaces) or 'all'}"
    return {"scrapes": f"up {of}"} | ({"history": f"all {of}"} if has_history else {})


class Asking:
    """A Prometheus that gives these answers one after the other, the last one from then on."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers) or [Answers()], []

    def __call__(self, sets, scrapes):
        self.asked.append((sets, scrapes))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def selectors(self):
        return [[each.expressions["scrapes"] for each in sets] for sets, _ in self.asked]


def pods(**numbers):
    return [(name, f"pod-{number}") for name, total in numbers.items() for number in range(total)]


def scraping(asking, known, *times_s, settings=SETTINGS):
    rounds = Rounds(ask=asking, settings=settings)
    for now_s in times_s or (0,):
        rounds.begin(expressions, known, now_s, threading.Event())
        rounds.take(now_s)
    return asking.selectors()


class TestParts:
    def test_are_namespaces_alone_after_a_failure(self):
        asking = Asking(Answers(problems={"scrapes": ("ResponseTooLarge", "")}), Answers())

        assert scraping(asking, pods(blue=1, green=1), 0, 15, 630) == [
            ["up of all"],
            ["up of blue", "up of green"],
            ["up of all"],
        ]

    def test_begin_with_the_one_that_was_kept_waiting_last(self):
        waited = Answers(problems={"scrapes@green": ("TickTimeout", "")})

        assert scraping(Asking(waited, Answers()), pods(blue=900, green=900), 0, 15, 30) == [
            ["up of blue", "up of green"],
            ["up of green", "up of blue"],
            ["up of green", "up of blue"],
        ]


class TestHistory:
    def asked(self, *steps):
        """(time, answers, namespaces) of each round to whether it asked for the past."""
        asking = Asking(*(answers for _, answers, _ in steps))
        rounds = Rounds(ask=asking, settings=SETTINGS)
        for now_s, _, names in steps:
            known = pods(**dict.fromkeys(names.split(), 1))
            rounds.begin(expressions, known, now_s, threading.Event())
            rounds.take(now_s)
        return [["history" in each.expressions for each in sets] for sets, _ in asking.asked]

    def test_is_asked_at_the_start_and_where_rounds_were_missed(self):
        failed = Answers(problems={"scrapes": ("PrometheusUnreachable", "")})
        steps = [(0, Answers()), (15, Answers()), (30, failed), (45, failed), (90, Answers())]

        found = self.asked(*((*each, "blue") for each in [*steps, (105, Answers())]))

        assert found == [[True], [False], [False], [False], [True], [False]]

    def test_is_asked_for_a_namespace_that_is_new(self):
        found = self.asked((0, Answers(), "blue"), (15, Answers(), "blue green"),
                           (30, Answers(), "blue green"))  # fmt: skip

        assert found == [[True], [True, False], [False]]

    def test_that_is_not_answered_is_not_asked_again_and_nobody_is_blamed(self):
        failed = Answers(problems={"history": ("ResponseTooLarge", "")})

        found = self.asked((0, failed, "blue green"), (15, Answers(), "blue green"))

        assert found == [[True], [False]]

    def in_turn(self, *rounds, **numbers):
        """Answers of rounds to (the parts with history, who awaits it after the round) of each."""
        asking, found = Asking(*rounds), []
        scraper = Rounds(ask=asking, settings=SETTINGS)
        for tick in range(len(rounds)):
            scraper.begin(expressions, pods(**numbers), 15 * tick, threading.Event())
            scraper.take(15 * tick)
            sets, _ = asking.asked[-1]
            asked = {name for each in sets for name in each.namespaces}
            assert not asked or asked == numbers.keys()
            parts = [each.namespaces for each in sets if "history" in each.expressions]
            found.append((parts, scraper.awaited))
        return found

    def test_of_a_large_fleet_is_asked_for_a_few_pods_in_each_round(self):
        answers = [Answers()] * 4

        found = self.in_turn(*answers, a=100, b=150, c=600, d=10)

        assert found == [
            ([("a", "b")], {"c", "d"}),
            ([("c",)], {"d"}),
            ([("d",)], set()),
            ([], set()),
        ]

    def test_that_others_kept_waiting_is_asked_again_after_the_rest_three_times_in_all(self):
        late = Answers(
            problems={"history@a": ("TickTimeout", ""), "history@b": ("TickTimeout", "")}
        )

        found = self.in_turn(late, *[late] * 4, a=250, b=250)

        assert [parts for parts, _ in found] == [[("a",)], [("b",)], [("a",)], [("b",)], [("a",)]]
        assert [awaited for _, awaited in found[-2:]] == [{"a", "b"}, {"b"}]

    def test_of_a_namespace_that_is_never_answered_keeps_no_other_waiting(self):
        large = ("ResponseTooLarge", "")
        failed = Answers(problems={"scrapes@a": large, "history@a": large})

        found = self.in_turn(*[failed] * 4, a=1, b=250, c=10)

        assert found[0] == ([("a", "c")], {"a", "b", "c"})
        assert found[1] == ([("b",)], {"a", "c"})
        assert [awaited for _, awaited in found[2:]] == [{"a"}, {"a"}]

    def test_may_take_more_bytes_than_what_is_asked_without_it(self):
        asking = Asking(Answers())
        scraper = Rounds(ask=asking, settings=SETTINGS)
        scraper.begin(expressions, pods(a=250, b=250), 0, threading.Event())
        [[historic, other]] = [sets for sets, _ in asking.asked]

        assert (historic.num_pods, other.num_pods) == (750, 250)

    def test_that_is_too_large_is_awaited_no_more(self):
        failed = Answers(problems={"history@a": ("ResponseTooLarge", "")})

        assert self.in_turn(failed, a=250, b=250) == [([("a",)], {"b"})]

    def test_begins_anew_where_the_clock_was_set_back(self):
        found = self.asked((5000, Answers(), "blue"), (15, Answers(), "blue"))

        assert found == [[True], [True]]


class TestLog:
    def lines(self, caplog, *answers):
        with caplog.at_level(logging.INFO):
            scraping(Asking(*answers), [], *range(len(answers)))
        return caplog.messages

    def test_has_a_line_when_what_fails_changes(self, caplog):
        one = Answers(problems={"up": LATE})
        two = Answers(problems={"up": LATE, "running@blue": LATE})

        lines = self.lines(caplog, Answers(), one, one, two, two, Answers(), Answers())

        assert lines == [
            "metrics: failed=up reason=QueryTimeout: no full answer within 10 s",
            "metrics: failed=running@blue,up reason=QueryTimeout: no full answer within 10 s",
            "metrics: every query is answered again",
        ]

    def test_has_a_line_when_the_clocks_drift_apart(self, caplog):
        near, far = (Answers(clock_skew_s=value) for value in (-60, -61))

        assert self.lines(caplog, near, far, far) == [
            "metrics: the clock of Prometheus is more than 60 s off ours"
        ]

    def test_is_short_however_much_fails(self):
        names = {f"query@{number:03}": LATE for number in range(500)}

        line = describe(Answers(problems=names, partial=frozenset(names)))

        assert line.startswith("failed=query@000,query@001,")
        assert "and 492 more" in line
        assert len(line) < 500


class TestNothingDecides:
    def test_is_the_problem_of_a_query_that_would(self):
        answers = Answers(queries={"gpus"}, problems={"scrapes": LATE, "gpus": ("x", "y")})

        assert nothing_decides(answers) == LATE

    def test_by_namespace_one_answer_is_enough(self):
        answers = Answers(queries={"scrapes"}, problems={"scrapes@blue": LATE})

        assert nothing_decides(answers) is None

    def test_nothing_asked_is_no_problem(self):
        assert nothing_decides(Answers()) is None
