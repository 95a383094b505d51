"""How long a pod that is to stop may take, by hand."""

import pytest

from fleet_builders import SITE, a_model, a_sizing
from tonnage.manifests.children import deployment
from tonnage.manifests.pod import (
    LongestAnswer,
    drain_allowed_s,
    drain_time_s,
    grace_period_s,
    longest_answer,
    longest_answer_tokens,
)


def demanding(**output):
    demand = {"requestsPerSecond": 4, "promptTokens": {"mean": 500}, "outputTokens": output}
    return a_model(demand=demand).spec


def an_answer(seconds):
    return LongestAnswer(tokens=100, first_token_s=0, token_s=seconds / 100)


class TestTheLongestAnswer:
    @pytest.mark.parametrize(
        ("given", "mean", "longest"),
        [
            ({"mean": 1000, "p99": 4000}, 1000, 4000),
            ({"mean": 1000, "p99": 4000}, 1500, 6000),  # measured longer: the spread stays
            ({"mean": 1000, "p99": 1000}, 1000, 1000),
            ({"mean": 1000}, 1000, 4605.17),  # exponential: 1000 * ln(100)
            ({"mean": 1000}, 2000, 8192),  # 9210, and no request is longer than 8192
            ({"mean": 1000, "p99": 4000}, 3000, 8192),
        ],
    )
    def test_has_the_p99_of_the_spec_around_the_mean_of_the_workload(self, given, mean, longest):
        spec = demanding(**given)

        assert longest_answer_tokens(spec, mean) == pytest.approx(longest, abs=0.01)

    def test_of_a_spec_without_demand_is_exponential(self):
        spec = a_model(demand=None).spec

        assert longest_answer_tokens(spec, 512) == pytest.approx(2357.85, abs=0.01)

    def test_takes_its_first_token_and_then_each_at_the_load_line(self):
        answer = LongestAnswer(tokens=4000, first_token_s=2, token_s=0.05)

        assert answer.seconds == 202

    def test_begins_at_the_latest_limit_of_the_slo(self):
        slo = {
            "timeToFirstToken": {"p50": "1s", "p95": "2s"},
            "timePerOutputToken": {"p95": "50ms"},
        }
        model = a_model(slo=slo)
        sizing = a_sizing(model)

        answer = longest_answer(model.spec, sizing)

        assert answer.first_token_s == 2
        assert answer.token_s == sizing.at_capacity.tpot_s <= 0.05

    def test_begins_as_a_mean_prompt_does_where_there_is_no_limit(self):
        model = a_model(slo=None)

        # 4,000 tokens of prompt in one step and half of the one in progress.
        assert 0 < longest_answer(model.spec, a_sizing(model)).first_token_s < 1


class TestTheTimeToFinish:
    @pytest.mark.parametrize(
        ("answer_s", "given_s"),
        [(1, 45), (45, 45), (45.1, 60), (202, 210), (570, 570), (571, 570), (5000, 570)],
    )
    def test_is_that_of_the_longest_answer_within_bounds(self, answer_s, given_s):
        assert drain_time_s(an_answer(answer_s), running_s=None) == given_s

    @pytest.mark.parametrize(
        ("answer_s", "running_s", "given_s"),
        [
            (202, 210, 210),
            (60, 210, 210),  # more than needed costs nothing
            (225, 210, 210),  # within a tenth
            (235, 210, 240),
            (5000, 570, 570),
        ],
    )
    def test_that_runs_stays_while_it_is_enough(self, answer_s, running_s, given_s):
        assert drain_time_s(an_answer(answer_s), running_s=running_s) == given_s

    def test_lies_between_the_endpoints_and_the_end_of_the_processes(self):
        assert grace_period_s(45) == 15 + 45 + 15
        assert grace_period_s(570) == 600
        assert drain_allowed_s(75) == 45
        assert drain_allowed_s(10) == 0


def test_the_template_gives_the_engine_the_time_and_kubernetes_more():
    made = deployment(a_model(), a_sizing(), SITE, drain_s=210)

    pod = made["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    assert arguments[arguments.index("--shutdown-timeout") + 1] == "210"
    assert pod["terminationGracePeriodSeconds"] == 240
    assert made["metadata"]["annotations"]["tonnage.dev/drain-seconds"] == "210"


def test_a_new_template_follows_the_longest_answer():
    model = a_model()
    sizing = a_sizing(model)

    made = deployment(model, sizing, SITE)

    needed_s = longest_answer(model.spec, sizing).seconds
    given_s = int(made["metadata"]["annotations"]["tonnage.dev/drain-seconds"])
    assert needed_s <= given_s < needed_s + 15
