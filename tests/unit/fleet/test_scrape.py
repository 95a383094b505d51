"""What is asked in a tick, in how many parts, and what is said of what failed."""

import logging
import threading

from tonnage.cluster.questions import Answers
from tonnage.estimate.metrics import TABLE
from tonnage.fleet.rounds import Rounds
from tonnage.fleet.scrape import Scraper, describe, kept_labels, nothing_decides
from tonnage.settings import Settings

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
LATE = ("QueryTimeout", "no whole answer within 10 s")


def expressions(namespaces):
    return {"up": f"up of {'|'.join(namespaces) or 'all'}"}


class Asking:
    """A Prometheus that gives these answers one after the other, the last one from then on."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers) or [Answers()], []

    def __call__(self, sets, kept):
        self.asked.append((sets, kept))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def selectors(self):
        return [[each.expressions["up"] for each in sets] for sets, _ in self.asked]


def pods(**numbers):
    return [(name, f"pod-{number}") for name, total in numbers.items() for number in range(total)]


def scraping(asking, known, *times_s, settings=SETTINGS):
    rounds = Rounds(ask=asking, every_s=15, reusable_s=30)
    scraper = Scraper(rounds=rounds, settings=settings)
    for now_s in times_s or (0,):
        scraper.begin(expressions, known, now_s, threading.Event())
        scraper.take(now_s)
    return asking.selectors()


class TestParts:
    def test_are_namespaces_alone_after_a_failure(self):
        asking = Asking(Answers(problems={"up": ("ResponseTooLarge", "")}), Answers())

        assert scraping(asking, pods(blue=1, green=1), 0, 15, 630) == [
            ["up of all"],
            ["up of blue", "up of green"],
            ["up of all"],
        ]

    def test_begin_with_the_one_that_was_kept_waiting_last(self):
        waited = Answers(problems={"up@green": ("TickTimeout", "")})

        assert scraping(Asking(waited, Answers()), pods(blue=900, green=900), 0, 15, 30) == [
            ["up of blue", "up of green"],
            ["up of green", "up of blue"],
            ["up of green", "up of blue"],
        ]


class TestKept:
    def test_are_labels_that_any_query_reads_once_each(self):
        labels = kept_labels(SETTINGS.model_copy(update={"pod_label": "name"}))

        assert labels[:3] == ("namespace", "name", "engine")
        assert set(labels[3:]) >= {label for each in TABLE.values() for label in each.own_labels}
        assert len(set(labels)) == len(labels)

    def test_are_pods_of_ours(self):
        asking = Asking()
        scraping(asking, pods(blue=2))

        [(_, kept)] = asking.asked
        assert kept.pods == {("blue", "pod-0"), ("blue", "pod-1")}


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
            "metrics: failed=up reason=QueryTimeout: no whole answer within 10 s",
            "metrics: failed=running@blue,up reason=QueryTimeout: no whole answer within 10 s",
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
        answers = Answers(
            series={"steps": []}, problems={"completions_4": LATE, "steps": ("x", "y")}
        )

        assert nothing_decides(answers) == LATE

    def test_by_namespace_one_answer_is_enough(self):
        answers = Answers(series={"completions_4": []}, problems={"completions_4@blue": LATE})

        assert nothing_decides(answers) is None

    def test_nothing_asked_is_no_problem(self):
        assert nothing_decides(Answers()) is None
