"""Views of the replay: what runs in each, and how the page shows them side by side."""

import pytest
from replay_cases import Case, View, scenario
from replay_runs import REFUSING, USUAL, Draw, Run, job_of
from replay_views import VIEWS, page_of

pytestmark = pytest.mark.thorough

CASE = Case(name="swap-slow")
VLLM = View(has_vllm_flags=True)


def a_draw(view=USUAL):
    return Draw(case=CASE, start_s=120.0, speed=1.0, seed=0, view=view)


def a_run(attainment, gpu_hours):
    figures = {
        "attainment": attainment,
        "worst_hour": attainment,
        "gpu_hours": gpu_hours,
        "num_requests": 50_000,
    }
    return Run(cpu_s=1.0, sources="x", figures=figures)


def flags_of(draw):
    flags = draw.scenario().planned.flags
    return flags.max_num_seqs, flags.max_num_batched_tokens, flags.gpu_memory_utilization


def test_the_usual_view_is_the_benchmarks_and_its_files_too():
    usual = a_draw()

    assert VIEWS[0] == USUAL
    assert usual.scenario() == scenario(CASE, start_s=120.0, seed=0, speed=1.0)
    assert "view" not in job_of(usual, "ray").asked()
    assert job_of(usual, "ray").file_name.endswith("seed_0--ray.json")


def test_views_have_files_of_their_own_and_tonnage_always_its_flags():
    draws = [a_draw(view) for view in VIEWS]

    assert len({job_of(draw, "ray").file_name for draw in draws}) == 4
    assert len({job_of(draw, "tonnage").file_name for draw in draws}) == 2


def test_vllms_flags_replace_the_plans_and_its_replicas_stay():
    usual, other = a_draw(), a_draw(VLLM)

    assert flags_of(other) == (1024, 8192, 0.92)
    assert flags_of(usual)[0] < 1024
    assert other.scenario().planned.replicas == usual.scenario().planned.replicas


def test_a_router_is_known_to_the_plan_and_to_the_cluster():
    found = a_draw(View(routing="LeastOutstanding")).scenario()

    assert found.model.spec.scaling.routing == "LeastOutstanding"
    assert found.planned.believed_requests_per_s > 0
    assert found.planned.replicas <= a_draw().scenario().planned.replicas


def test_a_policy_whose_engines_refuse_gets_the_limits_of_a_plan_that_refuses():
    usual, refusing = job_of(a_draw(), "ray"), job_of(a_draw(), f"ray{REFUSING}")
    flags = refusing.draw.scenario().planned.flags

    assert refusing.policy == "ray"
    assert refusing.file_name != usual.file_name
    assert flags.refuse_requests
    assert flags_of(refusing.draw) == flags_of(usual.draw)
    assert not usual.draw.scenario().planned.flags.refuse_requests


def test_a_page_shows_each_view_over_all_cases_and_all_views_of_a_case():
    found = {
        USUAL: {a_draw(): {"tonnage": a_run(0.995, 4.0), "ray": a_run(1.0, 8.0)}},
        VLLM: {a_draw(VLLM): {"tonnage": a_run(0.995, 4.0), "ray": a_run(0.5, 6.0)}},
    }

    page = page_of(found, ["tonnage", "ray"])

    assert "| ray | 1 | 1 | 1 of 1 | 100.0% | 100.0% | 100.0% | 2.00 |" in page
    assert "| ray | 1 | 0 | 0 of 1 | 50.0% | 50.0% | 50.0% | 1.50 |" in page
    assert "| policy | Tonnage's flags, Service | vLLM's flags, Service |" in page
    assert "| ray | 20 | 20 |" in page
    assert "| ray | 100.00% / 8.00 | **50.00%** / 6.00 |" in page
