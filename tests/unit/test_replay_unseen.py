"""The replay of hours that no rule was fitted to: what is drawn, and how policies are compared."""

import random
from dataclasses import replace

import pytest
from replay_cases import Case, NoCaseError
from replay_runs import Draw, Run
from replay_unseen import FEWEST, Family, page_of, windows

pytestmark = pytest.mark.thorough

TIMES = [hour * 3600 + 12 * each for hour in (0, 1, 4) for each in range(300)]


def a_draw(name, seed):
    return Draw(case=Case(name=name), start_s=60.0, speed=None, seed=seed)


def a_run(attainment, gpu_hours):
    figures = {"attainment": attainment, "worst_hour": attainment, "gpu_hours": gpu_hours}
    return Run(cpu_s=1.0, sources="x", figures=figures)


def a_family(folder, *, number=4):
    """Five hours of 300 requests each, of which the third and the fourth have none."""
    rows = [f"{at},500,20" for at in TIMES]
    path = folder / "day.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return Family(file=path.name, times=(2, 3), number=number, from_hour=0, until_hour=5)


class TestWindows:
    def test_hold_enough_requests(self, tmp_path):
        found = list(windows(a_family(tmp_path, number=20), tmp_path, random.Random(1)))  # noqa: S311

        assert len(found) == 20
        for case in found:
            held = [at for at in TIMES if case.from_s <= at < case.until_s]
            assert len(held) >= FEWEST
            assert 2 <= case.times <= 3

    def test_that_are_nowhere_are_told(self, tmp_path):
        family = replace(a_family(tmp_path), from_hour=2, until_hour=4)

        with pytest.raises(NoCaseError, match="no window of 1000 has 200 requests"):
            list(windows(family, tmp_path, random.Random(1)))  # noqa: S311

    def test_are_the_same_each_time(self, tmp_path):
        first, second = (
            list(windows(a_family(tmp_path), tmp_path, random.Random(1)))  # noqa: S311
            for _ in range(2)
        )

        assert first == second


def test_policies_are_compared_over_all_cases_that_both_have():
    found = {
        a_draw("steady", 1): {"tonnage": a_run(0.995, 4.0), "ray": a_run(1.0, 8.0)},
        a_draw("step", 2): {"tonnage": a_run(0.90, 6.0), "ray": a_run(0.98, 12.0)},
        a_draw("step", 3): {"tonnage": a_run(1.0, 2.0)},
    }

    page = page_of(found, ["tonnage", "ray"])

    assert "3 cases of 2 families" in page
    assert "| tonnage | 3 | 2 | 2 of 2 | 96.5% | 90.0% | 90.0% | 1.00 |" in page
    assert "| ray | 2 | 1 | 1 of 1 | 99.0% | 98.0% | 98.0% | 2.00 |" in page
    assert "| step | 1 of 2 / 95.0% / 8.0 | 0 of 1 / 98.0% / 12.0 |" in page


def test_what_can_be_kept_is_what_a_policy_without_hindsight_keeps():
    found = {
        a_draw("step", 1): {"tonnage": a_run(0.9, 4.0), "best-static": a_run(1.0, 8.0)},
        a_draw("step", 2): {"tonnage": a_run(0.9, 4.0), "ray": a_run(0.99, 8.0)},
        a_draw("step", 3): {"tonnage": a_run(1.0, 4.0), "ray": a_run(0.9, 8.0)},
    }

    page = page_of(found, ["tonnage", "best-static", "ray"])

    assert "| tonnage | 3 | 1 | 1 of 2 |" in page
    assert "| best-static | 1 | 1 | 0 of 0 |" in page
    assert "| ray | 2 | 1 | 1 of 2 |" in page
