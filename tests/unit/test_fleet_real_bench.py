"""The bench of a crowd on a real API server: what it reads, and the page that it leaves."""

import json
from contextlib import closing

import pytest
from fleet_real import TABLES, page_of, tick_walls
from fleet_real_world import Look, a_question

from audit_log import AuditLog

pytestmark = pytest.mark.thorough

MARKS = (b'"us"',)


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


def test_the_page_has_the_parts_that_a_run_came_to_and_as_many_cells_as_columns():
    figures = {"objects": 1, "pods": 3, "questions": 1, "first": 7, "cpu": 1}
    _, herd, fixed = page_of(figures).split("\n## ")

    assert (herd.partition("\n")[0], fixed.partition("\n")[0]) == tuple(TABLES)[:2]
    assert "| 1 | 3 | 1 | 7 |  |" in herd
    for part in (herd, fixed):
        assert len({line.count("|") for line in part.splitlines() if line.startswith("|")}) == 1


def test_a_tick_that_ended_between_two_looks_is_counted_with_its_own_time():
    looks = [a_look(1, 2.0), a_look(1, 2.0), a_look(2, 7.0), a_look(4, 11.0)]

    assert tick_walls(looks) == [5.0, 2.0, 2.0]


def test_no_two_questions_are_the_same():
    asked = {json.dumps(a_question(number), sort_keys=True) for number in range(5000)}

    assert len(asked) == 5000
