"""The replay benchmark: its cases, that it goes on where it was stopped, and what its page says."""

import math

import pytest
from click.testing import CliRunner
from replay import POLICIES, jobs_of, left_out, main
from replay_cases import NoCaseError, chosen_cases, shape_cases, trace_case, traces_in
from replay_others.registry import ALL
from replay_report import meetings, report, verdict
from replay_runs import Draw, Job, Run, read, write

from tonnage.replay.policy import policy_of

pytestmark = pytest.mark.thorough

STEP = next(case for case in shape_cases() if case.name == "step")


def a_job(policy="tonnage", *, case=STEP, seed=0):
    return Job(draw=Draw(case=case, start_s=120.0, speed=1.0, seed=seed), policy=policy)


def a_run(gpu_hours=6.0, attainment=0.995, **changes):
    figures = {
        "duration_s": 3600.0,
        "num_requests": 1000,
        "num_unserved": 0,
        "num_too_long": 0,
        "gpu_hours": gpu_hours,
        "fluid_gpu_hours": 3.0,
        "attainment": attainment,
        "worst_hour": attainment - 0.01,
        "scaled_up": 2,
        "scaled_down": 1,
    }
    return Run(**{"cpu_s": 1.0, "sources": "abc", "figures": figures} | changes)


FAILED = Run(cpu_s=1.0, sources="abc", error="Traceback ...\nValueError: too small\n")


def runs_of(**by_policy):
    return {a_job(name.replace("_", "-")): run for name, run in by_policy.items()}


def the_verdict(**by_policy):
    (found,) = meetings(runs_of(**by_policy))
    return verdict(found)


def a_trace(folder, name="day.csv", num_requests=40):
    path = folder / name
    rows = [f"{0.5 * number},500,20" for number in range(num_requests)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
    return path


def asked(folder, *arguments):
    options = ["--out", str(folder / "runs"), "--start-up", "60"]
    return CliRunner().invoke(main, [*map(str, arguments), *options, "--processes", "1"])


def test_a_trace_is_a_file_with_a_scale_and_a_window():
    assert trace_case("a/day.csv.gz:0.5:0h-48h").until_s == 172_800
    assert trace_case("day.csv").times == 1.0
    assert math.isinf(trace_case("day.csv:2").until_s)


@pytest.mark.parametrize("text", ["day.csv:fast", "day.csv:0", "day.csv:1:2h", "day.csv:1:2h-1h"])
def test_what_is_no_trace_is_refused_with_what_was_report(text):
    with pytest.raises(NoCaseError, match=text):
        trace_case(text)


def test_missing_traces_are_named(tmp_path):
    with pytest.raises(NoCaseError, match=r"no.csv, .*none.csv"):
        chosen_cases([f"{tmp_path}/no.csv", f"{tmp_path}/none.csv:2"], [])


def test_two_traces_of_one_name_are_refused(tmp_path):
    (tmp_path / "other").mkdir()
    traces = [str(a_trace(folder)) for folder in (tmp_path, tmp_path / "other")]

    with pytest.raises(NoCaseError, match="day x 1, 0 s to end"):
        chosen_cases(traces, [])
    assert chosen_cases([traces[0], f"{traces[1]}:2"], ["day"])


def test_an_unknown_case_is_told_with_the_known():
    with pytest.raises(NoCaseError, match="stepp; there are steady, step, ramp"):
        chosen_cases([], ["stepp"])


def test_each_policy_runs_once_in_each_case_with_each_cold_start():
    cases = [case for case in shape_cases() if case.name in {"step", "diurnal"}]
    jobs = jobs_of(cases, (60.0, 240.0), ["tonnage", "wva2", "wva2:0.4", "wva2"])

    assert len(jobs) == len(set(jobs)) == 2 * 2 * 3


def test_traces_of_a_folder_are_those_that_the_benchmark_knows(tmp_path):
    with pytest.raises(NoCaseError, match=r"has none of azure2023_conv.csv.gz, "):
        traces_in(tmp_path)

    (tmp_path / "azure2023_code.csv.gz").touch()
    assert [trace_case(each).name for each in traces_in(tmp_path)] == ["azure2023_code"]


def test_all_policies_of_the_bench_exist():
    assert [str(policy_of(each, ALL)) for each in POLICIES] == list(POLICIES)


def test_a_run_is_read_as_it_was_written_and_only_for_its_question(tmp_path):
    job, run = a_job(), a_run()
    write(tmp_path, job, run)

    assert read(tmp_path, job).figures == run.figures
    assert read(tmp_path, a_job(seed=1)) is None
    content = (tmp_path / job.file_name).read_text()
    for others in ('"target": 0.99', '"target": 0.95'), ('"cpu_s"', '"wall_s"'):
        (tmp_path / job.file_name).write_text(content.replace(*others))
        assert read(tmp_path, job) is None


def test_jobs_have_files_of_their_own():
    cases = [STEP, trace_case("step.csv"), trace_case("step.csv:2"), trace_case("step.csv:1:0h-1h")]
    jobs = [a_job(policy, case=each) for each in cases for policy in ("wva2", "wva2:1")]

    assert len({job.file_name for job in jobs}) == len(jobs)


def test_it_goes_on_where_it_was_stopped_and_writes_the_page(tmp_path):
    arguments = [a_trace(tmp_path), "--only", "day", "--policy"]
    first = asked(tmp_path, *arguments, "static:1")
    page = tmp_path / "page.md"
    second = asked(tmp_path, *arguments, "static:1,static:2", "--page", page)

    assert (first.exit_code, second.exit_code) == (0, 0), second.output
    assert "1 runs, 0 of them done before" in first.output
    assert "2 runs, 1 of them done before" in second.output
    assert "static:2: 0.03 GPU-h, 100.00% kept" in second.output
    assert "Partial: without the cases steady, step" in page.read_text()


def test_a_run_that_fails_is_told_and_tried_again(tmp_path):
    trace = tmp_path / "day.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,many,1\n")
    arguments = [trace, "--only", "day", "--policy", "static:1", "--page", tmp_path / "page.md"]
    found = [asked(tmp_path, *arguments) for _ in range(2)]

    for each in found:
        assert each.exit_code == 1
        assert "0 of them done before" in each.output
        assert "FAILED: tonnage.replay.trace_rows.TraceError" in each.output
    assert (
        "static:1: tonnage.replay.trace_rows.TraceError: day.csv:2"
        in (tmp_path / "page.md").read_text()
    )


@pytest.mark.parametrize(
    ("by_policy", "kind", "words"),
    [
        (
            {"tonnage": a_run(6.0), "wva2": a_run(8.0), "hpa_concurrency": a_run(9.0)},
            "wins",
            "25.0% cheaper than wva2",
        ),
        ({"tonnage": a_run(6.0), "wva2": a_run(5.0)}, "loses", "20.0% dearer than wva2"),
        ({"tonnage": a_run(6.0), "wva2": a_run(6.0)}, "is even", "even with wva2"),
        ({"tonnage": a_run(6.0), "wva2": a_run(1.0, 0.98)}, "alone keeps the target", "6.00 GPU-h"),
        ({"tonnage": a_run(6.0, 0.975), "wva2": a_run(9.0)}, "misses the target where", "1.50 po"),
        (
            {"tonnage": a_run(6.0, 0.975), "wva2": a_run(9.0, 0.9)},
            "misses the target as all",
            "1.50 po",
        ),
        # What is told the traffic or the capacity is no rival.
        ({"tonnage": a_run(6.0), "best_static": a_run(5.0), "true_rate": a_run(5.0)}, "alone", ""),
    ],
)
def test_tonnage_is_held_against_the_cheapest_that_keeps_the_target(by_policy, kind, words):
    found = the_verdict(**by_policy)

    assert found[0].startswith(kind)
    assert words in found[1]


def test_the_page_tells_what_failed_what_is_missing_and_what_was_not_asked():
    runs = runs_of(tonnage=a_run(), wva2=FAILED)
    jobs = [*runs, a_job("hpa-concurrency")]
    page = report(jobs, runs, left_out=left_out(jobs))

    assert "1 of 3 runs" in page
    assert "wva2: ValueError: too small" in page
    assert "- step, cold start 120 s, not run: hpa-concurrency\n" in page
    assert "without the cold starts 60 s, 240 s, 600 s" in page


def test_figures_of_different_sources_are_told_apart():
    runs = runs_of(tonnage=a_run(), ray=a_run(), wva2=a_run(sources="def"))

    page = report(list(runs), runs, left_out=[])

    assert "By abc: tonnage, ray.\nBy def: wva2." in page
    assert "may not belong together" not in page


def test_figures_of_one_policy_by_different_sources_are_called_in_doubt():
    runs = {a_job(): a_run(), a_job(seed=1): a_run(sources="def"), a_job("ray"): a_run()}

    page = report(list(runs), runs, left_out=[])

    assert "**Runs of tonnage by different sources may not belong together.**" in page


def test_where_nobody_keeps_the_target_the_nearest_is_told():
    runs = runs_of(tonnage=a_run(6.0, 0.95), wva2=a_run(7.0, 0.97), best_static=a_run(9.0))
    page = report(list(runs), runs, left_out=[])

    assert "| none; wva2 kept 97.00% at 7.00 GPU-h | **misses by 4.00 points**" in page
    assert "Of 1 cases with figures Tonnage misses the target as all do in 1." in page
