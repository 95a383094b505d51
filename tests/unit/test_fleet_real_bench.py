"""The bench of a crowd on a real API server: what it reads, and the page that it leaves."""

import json
from contextlib import closing

import pytest
from fleet_real import TABLES, page_of, rows_of, tick_walls, with_figures
from fleet_real_world import Look, a_question

from audit_log import AuditLog

pytestmark = pytest.mark.thorough

MARKS = (b'"us"',)
HERD, FIXED, CHANGES = TABLES


def a_line(name, user="us"):
    moment = "2026-01-01T00:00:00.000000Z"
    event = {
        "requestReceivedTimestamp": moment,
        "stageTimestamp": moment,
        "user": {"username": user},
        "verb": "get",
        "objectRef": {"resource": "pods", "namespace": "a", "name": name},
        "responseStatus": {"code": 200},
        "annotations": {},
    }
    return json.dumps(event)


def a_look(num_ticks, ticks_s):
    return Look(at_s=0, cpu_s=0, rss_mib=1, load=1, num_ticks=num_ticks, ticks_s=ticks_s)


class TestTheAuditLog:
    def test_gives_each_line_once_and_a_half_one_when_it_is_whole(self, tmp_path):
        path = tmp_path / "audit.log"
        whole, half = a_line("x"), a_line("y")
        path.write_text(f"{whole}\n{half[:40]}")
        with closing(AuditLog(path, MARKS)) as log:
            first = log.read()
            with path.open("a") as more:
                more.write(f"{half[40:]}\n{a_line('z', user='them')}\n")

            assert [each.name for each in first] == ["x"]
            assert [each.name for each in log.read()] == ["y"]
            assert log.read() == []

    def test_goes_on_where_the_file_was_rotated(self, tmp_path):
        path = tmp_path / "audit.log"
        path.write_text(a_line("x") + "\n")
        with closing(AuditLog(path, MARKS)) as log:
            path.rename(tmp_path / "audit-1.log")
            path.write_text(a_line("y") + "\n")

            assert [each.name for each in log.read()] == ["x", "y"]


class TestThePage:
    def test_keeps_the_rows_of_other_runs_and_replaces_its_own(self, tmp_path):
        page = tmp_path / "page.md"
        small = {"objects": 200, "pods": 600, "questions": 100, "first": 3, "p50": 1}
        large = {"objects": 1000, "pods": 3000, "questions": 1000, "first": 5}
        for figures in (large, small, large | {"first": 7}):
            page.write_text(page_of(with_figures(rows_of(page), figures), ticks=12))
        rows = rows_of(page)

        assert list(rows[HERD]) == [(200, 100), (1000, 1000)]
        assert rows[HERD][1000, 1000].startswith("| 1000 | 3000 | 1000 | 7 | ")
        assert list(rows[CHANGES]) == [(200, 100)]
        assert rows[FIXED] == {}

    def test_has_as_many_cells_as_columns(self, tmp_path):
        figures = {"objects": 1, "pods": 1, "questions": 1, "first": 1, "cpu": 1, "p99": 1}
        text = page_of(with_figures(rows_of(tmp_path / "none"), figures), ticks=1)

        for part in text.split("\n## ")[1:]:
            widths = {line.count("|") for line in part.splitlines() if line.startswith("|")}
            assert len(widths) == 1


def test_a_tick_that_ended_between_two_looks_is_counted_with_its_own_time():
    looks = [a_look(1, 2.0), a_look(1, 2.0), a_look(2, 7.0), a_look(4, 11.0)]

    assert tick_walls(looks) == [5.0, 2.0, 2.0]


def test_no_two_questions_are_the_same():
    asked = {json.dumps(a_question(number), sort_keys=True) for number in range(5000)}

    assert len(asked) == 5000
