"""``plan`` and the operator are one answer: what it begins with, its flags, and where it ends."""

import pytest

from first_fleet import plan_lines, question, run

EIGHT = [plan_lines()[number] for number in (0, 1, 2, 3, 5, 6, 8, 10)]
"""The first of at most eight replicas."""


def as_begun(begun):
    split = begun.flags.parallelism
    return (
        begun.replicas,
        begun.flags.max_num_seqs,
        begun.flags.max_num_batched_tokens,
        split.tensor,
    )


def as_said(answer, most):
    plan = answer["plan"]
    names = ("maxNumSeqs", "maxNumBatchedTokens")
    flags = (plan[name] for name in names)
    return min(most, answer["replicasAtFirst"]), *flags, plan["parallelism"]["tensor"]


@pytest.mark.parametrize(
    "line",
    [
        "plan --model meta-llama/Llama-3.1-8B-Instruct --gpu L40S --rps 8 --prompt 1500 "
        "--output 300 --ttft 1s --tpot 40ms",
        "plan --model openai/gpt-oss-20b --gpu H100 --rps 10 --prompt 4000 --output 500 "
        "--ttft 300ms --tpot 100ms",
    ],
)
def test_the_operator_begins_as_the_plan_says(line):
    asked = question(line)

    most = asked.model.spec.scaling.max_replicas
    assert as_begun(asked.begun) == as_said(asked.answer, most)
    assert asked.answer["replicasAtFirst"] > asked.answer["plan"]["replicas"]


def test_with_approve_nothing_is_kept_for_a_demand_that_nobody_measured():
    options = "--gpu L40S --rps 20 --prompt 1500 --output 300 --ttft 1s --tpot 60ms"
    line = f"plan --model meta-llama/Llama-3.1-8B-Instruct {options}"
    acting, asking = question(line), question(line, mode="Approve")

    assert asking.answer["replicasAtFirst"] < acting.answer["replicasAtFirst"]
    assert asking.begun.replicas == asking.answer["replicasAtFirst"]


def test_users_ask_slow_engines_for_less():
    line = (
        "plan --model meta-llama/Llama-3.1-8B-Instruct --gpu L40S --prompt 1500 --output 300 "
        "--ttft 5s --tpot 200ms --set demand.concurrentUsers=2000"
    )
    asked = question(line)

    assert asked.begun.replicas == asked.answer["replicasAtFirst"]


@pytest.mark.thorough
@pytest.mark.parametrize("line", EIGHT)
def test_an_hour_later_it_runs_what_was_planned_and_keeps_the_slo(line):
    found = run(question(line))

    assert found.is_as_planned()
    assert found.late_ratio <= 1
