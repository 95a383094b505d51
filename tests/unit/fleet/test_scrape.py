"""What is asked in a tick, in how many parts, and what is said of what failed."""

import logging
import threading

import pytest

from tonnage.cluster.questions import Answers
from tonnage.estimate.metrics import TABLE
from tonnage.fleet.rounds import Rounds
from tonnage.fleet.scrape import (
    MAX_SETS,
    PART_PODS,
    SPLIT_S,
    Scraper,
    by_namespace,
    describe,
    kept_labels,
    nothing_decides,
)
from tonnage.settings import Settings
from tonnage.units import MIB

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
    def test_up_to_a_thousand_pods_there_is_one(self):
        assert PART_PODS == 1000
        assert scraping(Asking(), pods(blue=999, green=1)) == [["up of all"]]

    def test_beyond_that_there_is_one_for_every_thousand_of_whole_namespaces(self):
        known = pods(blue=600, green=300, red=101, teal=1200, white=400, zinc=600)

        assert scraping(Asking(), known) == [
            ["up of blue|green", "up of red", "up of teal", "up of white|zinc"]
        ]

    def test_each_says_for_how_many_pods_it_asks(self):
        sets = by_namespace(expressions, pods(green=1, blue=1000))

        assert [(each.namespaces, each.num_pods) for each in sets] == [
            (("blue",), 1000),
            (("green",), 1),
        ]

    def test_there_are_never_more_than_some_and_each_namespace_is_in_one(self):
        names = [f"team-{number}" for number in range(200)]

        sets = by_namespace(expressions, [(name, "a") for name in names])

        assert len(sets) <= MAX_SETS
        assert sorted(name for each in sets for name in each.namespaces) == sorted(names)
        shared = next(each for each in sets if len(each.namespaces) > 1)
        assert shared.expressions["up"] == f"up of {'|'.join(shared.namespaces)}"

    def test_a_namespace_keeps_its_part_when_another_one_comes(self):
        names = [f"team-{number}" for number in range(100)]
        before = by_namespace(expressions, [(name, "a") for name in names])
        after = by_namespace(expressions, [(name, "a") for name in [*names, "new"]])

        changed = {each.namespaces for each in after} - {each.namespaces for each in before}
        assert len(changed) == 1

    @pytest.mark.parametrize("name", ['x"} or vector(1) #', "a|b", ".*", "A", "a" * 64, ""])
    def test_what_is_no_name_of_a_namespace_gets_into_no_query(self, name):
        sets = by_namespace(expressions, [(name, "a"), ("blue", "a")])

        assert [each.namespaces for each in sets] == [("blue",)]

    @pytest.mark.parametrize("reason", ["ResponseTooLarge", "QueryTooLarge"])
    def test_after_an_answer_that_was_too_large_there_are_more_for_a_while(self, reason):
        asking = Asking(Answers(problems={"up": (reason, "")}), Answers())

        sizes = [
            len(each)
            for each in scraping(asking, pods(blue=1, green=1), 0, 15, SPLIT_S - 1, SPLIT_S)
        ]

        assert sizes == [1, 2, 2, 1]

    def test_after_answers_that_are_late_for_their_size_there_are_more(self):
        few, many = pods(blue=1, green=1), pods(blue=100)
        for known, bytes_read, is_split in (
            (few, 2 * MIB, True),
            (few, MIB, False),
            (many, 2 * MIB, False),
            (many, 4 * MIB, True),
        ):
            asking = Asking(Answers(problems={"up": LATE}, bytes_read=bytes_read))
            named = scraping(asking, known, 0, 15)[1] != ["up of all"]

            assert named == is_split, (len(known), bytes_read)

    @pytest.mark.parametrize(
        ("problems", "is_split"),
        [
            ({"up@blue": LATE, "up@green": LATE}, True),
            ({"up@blue": ("QueryRefused", "status 500")}, False),
            ({f"up@{name}": LATE for name in ("blue", "green", "red")}, False),
        ],
    )
    def test_after_a_part_that_hangs_while_others_answer_there_are_more(self, problems, is_split):
        series = {} if len(problems) == len("rgb") else {"up": []}
        asking = Asking(Answers(series=series, problems=problems))

        later = scraping(asking, pods(blue=600, green=300, red=900), 0, 15)[1]

        assert later == (
            ["up of blue", "up of green", "up of red"]
            if is_split
            else ["up of blue|green", "up of red"]
        )

    def test_after_another_failure_there_is_one(self):
        asking = Asking(Answers(problems={"up": LATE}))

        assert [len(each) for each in scraping(asking, pods(blue=1, green=1), 0, 15)] == [1, 1]


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
