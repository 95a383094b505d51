"""The page of a replay, and its words, of made-up outcomes."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cli_builders import assert_stands_alone, tree, words
from fleet_builders import a_model, a_sizing
from tonnage.catalog.gpu import Rent
from tonnage.cli.page.document import BAD, GOOD, SERIES, look
from tonnage.cli.page.timeline import PolicyCourse, course_figure, replay_page
from tonnage.cli.results.replays import ReplayQuestion, Replays
from tonnage.cli.text.replay import (
    cells,
    headline,
    notes,
    ran_words,
    verdict_kind,
)
from tonnage.replay.cluster import FirstPlan
from tonnage.replay.evaluation import RunFigures, SeriesPoint
from tonnage.replay.policies import PolicyResult, Scenario
from tonnage.replay.policy import policy_of
from tonnage.replay.simulation import SyntheticWorkload
from tonnage.replay.traffic import SHAPES
from tonnage.sizing.cost import GpuHour

DAY_S = 86_400.0
SCRIPT = "<script>alert(1)</script>"


def some_figures(gpu_hours, attainment, *, duration_s=DAY_S):
    return RunFigures(
        duration_s=duration_s,
        num_requests=10_000,
        num_too_long=3,
        num_unserved=0,
        attainment=attainment,
        worst_hour=attainment - 0.02,
        worst_hour_at_s=3600.0,
        gpu_hours=gpu_hours,
        scaled_up=4,
        scaled_down=5,
        starting_s=600.0,
        draining_s=60.0,
        mean_replicas=2.5,
        max_replicas=4,
        ttft_s=(0.1, 0.5, 1.0),
        tpot_s=(0.01, 0.02, math.inf),
    )


def some_points(number=6, *, width_s=300.0):
    return tuple(
        SeriesPoint(
            at_s=width_s * k,
            until_s=width_s * (k + 1),
            replicas=2.0,
            ready=2.0,
            live=2.0 + k % 2,
            load=1.5,
            requests_per_s=4.0,
            planned_requests_per_s=4.5,
            waiting=3.0,
            attainment=None if k == 3 else 0.97,
        )
        for k in range(number)
    )


def a_course(*shares, target=0.95, **changes):
    (point,) = some_points(1)
    points = tuple(
        replace(point, attainment=share, requests_per_s=4.0 * (share is not None), **changes)
        for share in shares
    )
    return PolicyCourse(points=points, target=target, most=4.0, color="#000000")


def an_outcome(name, gpu_hours, attainment, *, seed=0, **more):
    return PolicyResult(
        policy=policy_of(name),
        seed=seed,
        judged=some_figures(gpu_hours, attainment, **more),
        points=some_points(),
        fluid_gpu_hours=90.0,
        notes=(f"noted {SCRIPT}",) if name == "best-static" else (),
    )


def replays(*outcomes, num_seeds=1, ran_pods=None, hour=None):
    model = a_model()
    plan = FirstPlan(flags=a_sizing(model).flags, replicas=3, believed_requests_per_s=1.5)
    return Replays(
        question=ReplayQuestion(
            source=f"trace {SCRIPT}",
            scenario=Scenario(
                model=model,
                requests=SyntheticWorkload(shape=SHAPES["steady"], requests_per_s=1.0),
                planned=plan,
                target=0.99,
            ),
            hour=hour,
            starts_s=(240.0,),
            policies=tuple(dict.fromkeys(each.policy for each in outcomes)),
            num_seeds=num_seeds,
            ran_pods=ran_pods,
        ),
        outcomes=outcomes,
    )


def drawn(course):
    with look():
        return course_figure(course)


def first_case(found):
    ((_, fared),) = found.by_start()
    return fared


PEAK, OWN = an_outcome("best-static", 214.0, 0.995), an_outcome("tonnage", 131.0, 0.992)


def test_the_headline_is_what_tonnage_takes_and_saves():
    assert headline(first_case(replays(OWN, PEAK)), 0.99) == (
        "131 GPU-hours a day with Tonnage, 39% less than the smallest constant fleet in hindsight "
        "(214), at 99.20% of requests within the SLO (target 99%)"
    )


class TestTheCost:
    RENT = Rent(usd_per_hour=2.5, term="spot")
    HOUR = GpuHour(basis="rented", usd=2.5, parts="2.50 USD", rent=RENT)

    def test_stands_beside_gpu_hours_and_in_a_column_of_its_own(self):
        found = replays(OWN, PEAK, ran_pods=4.5, hour=self.HOUR)
        ((_, fared),) = found.by_start()

        assert headline(fared, 0.99).startswith("131 GPU-hours (327.50 USD) a day with Tonnage")
        assert "as counted: 216 GPU-hours (540.00 USD) a day" in (ran_words(fared, found.question))
        assert cells(fared[1])["cost"] == "535.00"
        assert "cost: H200 at 2.50 USD per GPU and hour: yours, spot" in list(notes(found))

    def test_is_in_the_data_of_each_run(self):
        (case,) = replays(PEAK, hour=self.HOUR).to_dict()["cases"]
        (run,) = case["policies"][0]["runs"]

        assert (case["perGpuHour"], case["currency"]) == (2.5, "USD")
        assert case["price"] == {"basis": "rented", "term": "spot"}
        assert run["cost"] == round(2.5 * run["gpuHours"], 2)
        assert run["costPerDay"] == round(2.5 * run["gpuHoursPerDay"], 2)

    def test_of_a_class_without_a_price_is_left_open(self):
        found = replays(PEAK)
        (case,) = found.to_dict()["cases"]

        assert cells(first_case(found)[0])["cost"] == "-"
        assert "cost: no price of H200 is known" in list(notes(found))
        assert case["price"] is None
        assert case["policies"][0]["runs"][0]["cost"] is None


def test_without_tonnage_the_headline_counts_what_is_compared():
    alone = first_case(replays(PEAK))

    assert headline(alone, 0.99) == "1 policy, without Tonnage"


def test_a_target_that_is_missed_is_said_in_the_headline():
    missed = first_case(replays(an_outcome("tonnage", 240.0, 0.98), PEAK))

    assert headline(missed, 0.99) == (
        "Target of 99% missed: 98.00% of requests within the SLO by Tonnage with 240 GPU-hours a "
        "day; the smallest constant fleet in hindsight takes 214"
    )
    assert verdict_kind(missed, 0.99) == "no"


def test_where_the_target_is_missed_the_headline_says_what_refusals_would_keep():
    refusing = an_outcome("in-time", 236.0, 0.988)
    missed = first_case(replays(an_outcome("tonnage", 240.0, 0.98), refusing))
    worse = first_case(
        replays(an_outcome("tonnage", 240.0, 0.98), an_outcome("in-time", 236.0, 0.97))
    )

    said = headline(missed, 0.99)
    assert said.endswith("; 98.80% with engine.admission: inTime and 236")
    assert "inTime" not in headline(worse, 0.99)


@pytest.mark.parametrize(
    ("gpu_hours", "attainment", "kind"),
    [(131.0, 0.992, "yes"), (240.0, 0.992, "short"), (131.0, 0.98, "no"), (240.0, 0.98, "no")],
)
def test_the_colour_of_the_verdict_says_what_its_figures_say(gpu_hours, attainment, kind):
    found = first_case(replays(an_outcome("tonnage", gpu_hours, attainment), PEAK))

    assert verdict_kind(found, 0.99) == kind


@pytest.mark.parametrize(
    ("attainment", "told"),
    [(0.992, "131, 39% less than that"), (0.98, "131, which misses the target")],
)
def test_beside_what_the_fleet_ran_nothing_is_saved_where_the_target_is_missed(attainment, told):
    # 4.5 replicas all day, of two GPUs each: 216 GPU-hours.
    found = replays(an_outcome("tonnage", 131.0, attainment), ran_pods=4.5)
    ((_, fared),) = found.by_start()

    assert ran_words(fared, found.question) == (
        "Your fleet ran 4.50 replicas on average, as counted: 216 GPU-hours a day at 2 GPUs each. "
        f"With Tonnage, simulated: {told}"
    )


def test_short_traffic_is_not_told_by_the_day():
    short = first_case(replays(an_outcome("tonnage", 2.0, 1.0, duration_s=7200.0)))

    assert headline(short, 0.99).startswith("2.00 GPU-hours in 120.0 min with Tonnage, at 100.00%")


def test_seeds_are_compared_each_with_its_own_and_the_median_is_told():
    # 0.5, 0.9 and 0.6 of the peak of the same seed; the medians alone would say 60 / 100.
    own = [an_outcome("tonnage", hours, 0.99, seed=k) for k, hours in enumerate((50, 90, 60))]
    peak = [an_outcome("best-static", 100, 1.0, seed=k) for k in range(3)]
    tonnage, _ = first_case(replays(*own, *peak, num_seeds=3))

    assert tonnage.of_peak == 0.6
    assert tonnage.middle("gpu_hours") == 60


def test_a_policy_without_a_fleet_is_told_with_dashes():
    none = PolicyResult(policy=policy_of("best-static"), seed=0, judged=None, notes=("none does",))
    found = replays(OWN, none)

    root = tree(replay_page(found))

    assert "none does" in words(root)
    assert found.to_dict()["cases"][0]["policies"][1]["runs"] == [
        {"seed": 0, "fluidGpuHours": 0.0, "series": []}
    ]


def test_data_has_no_infinity():
    (run,) = replays(OWN).to_dict()["cases"][0]["policies"][0]["runs"]

    assert run["timePerOutputTokenSeconds"] == {"p50": 0.01, "p95": 0.02, "p99": None}
    assert run["series"][3]["attainmentFraction"] is None


@pytest.fixture(scope="module")
def text():
    return replay_page(replays(OWN, PEAK))


def test_the_page_stands_alone_and_escapes_what_others_wrote(text):
    assert_stands_alone(text)
    assert SCRIPT not in text


def test_each_policy_has_a_picture(text):
    root = tree(text)

    assert [svg.get("role") for svg in root.iter("svg")] == ["img"] * 2
    assert [words(each) for each in root.iter("h3")] == [
        "tonnage over time",
        "best-static over time",
    ]


def test_a_share_below_the_target_has_another_colour_than_one_that_meets_it():
    def colours(shares):
        axes = drawn(a_course(*shares)).axes[3]
        return {
            line.get_label(): sum(math.isfinite(share) for share in line.get_ydata())
            for line in axes.lines
            if "target 95%" not in line.get_label()
        }, {line.get_label(): line.get_color() for line in axes.lines}

    counts, colors = colours([1.0, 0.95, 0.949, 0.5, None])
    assert counts == {"in SLO": 2, "below the target": 2}
    assert colors["below the target"] == colors["target 95%"] == BAD
    assert colors["in SLO"] == GOOD


@pytest.mark.parametrize(("planned", "lines"), [(4.5, 2), (None, 1)])
def test_what_is_planned_for_is_drawn_where_a_policy_says_it(planned, lines):
    course = a_course(1.0, 1.0, planned_requests_per_s=planned)

    assert len(drawn(course).axes[1].lines) == lines


def test_a_policy_has_a_colour_of_its_own(text):
    for figure, (color, _) in zip(tree(text).iter("figure"), SERIES, strict=False):
        assert color in "".join(str(each.attrib) for each in figure.iter())


def test_the_page_has_the_headline(text):
    assert "131 GPU-hours a day with Tonnage, 39% less" in words(tree(text).find(".//pre"))


def test_of_traffic_of_one_point_a_picture_is_drawn():
    one = SimpleNamespace(**{name: getattr(OWN, name) for name in ("policy", "seed", "judged")})
    outcome = PolicyResult(
        policy=one.policy, seed=one.seed, judged=one.judged, points=some_points(1)
    )

    assert_stands_alone(replay_page(replays(outcome)))
