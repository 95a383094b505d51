"""``tonnage plan`` with a demand by the hour: replicas, GPU-hours and cost, beside a constant."""

import csv
import io
import json
import re

import pytest

from cli_builders import SMALL, assert_stands_alone, run
from counted_fleet import PER_MINUTE, fleet
from http_double import serving
from tonnage.cli.commands.options import TIME_UNITS
from tonnage.replay.trace_rows import UNITS_PER_S

DAY = (*(2,) * 6, *(15,) * 2, *(40,) * 10, *(30,) * 3, *(5,) * 3)
"""Requests/s. A replica of SMALL sustains 11.6: these take 1, 2, 4, 3 and 1."""
REPLICAS = (*(1,) * 6, *(2,) * 2, *(4,) * 10, *(3,) * 3, *(1,) * 3)
REPLICA_HOURS = 6 * 1 + 2 * 2 + 10 * 4 + 3 * 3 + 3 * 1 + (1 + 2) * 240 / 3600
"""Of a day: three replicas start, four minutes before the hour that needs them."""
MONTH_DAYS = 730.5 / 24
H100_USD = 6.88


@pytest.fixture
def plan(tmp_path):
    """Return a function that plans SMALL for a file with some text."""

    def ask(text, *options, name="day.csv", manifest=SMALL):
        path = tmp_path / name
        path.write_text(text)
        return run("plan", "-f", "-", "--demand-file", path, *options, text=manifest)

    return ask


def a_csv(rates=DAY):
    return "hour,requests_per_s\n" + "".join(f"{k},{rate}\n" for k, rate in enumerate(rates))


def figures(result):
    (found,) = json.loads(result.stdout)
    return found["demandByHour"]


@pytest.fixture(scope="module")
def of_the_day(tmp_path_factory):
    folder = tmp_path_factory.mktemp("day")
    (folder / "day.csv").write_text(a_csv())
    page = folder / "plan.html"
    result = run(
        "plan", "-f", "-", "--demand-file", folder / "day.csv", "-o", "json", "--html", page,
        text=SMALL,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return result, page.read_text()


def test_each_hour_has_the_replicas_that_its_rate_takes(of_the_day):
    found = figures(of_the_day[0])

    assert tuple(each["replicas"] for each in found["steps"]) == REPLICAS
    assert found["peak"] == {"at": "hour 8", "requestsPerSecond": 40}
    assert found["meanRequestsPerSecond"] == pytest.approx(sum(DAY) / 24, abs=1e-4)


def test_a_month_is_as_by_hand_beside_four_replicas_all_the_time(of_the_day):
    month = figures(of_the_day[0])["perMonth"]
    hours, constant = REPLICA_HOURS * MONTH_DAYS, 4 * 730.5

    requests = sum(DAY) / 24 * 730.5 * 3600
    for found, gpu_hours in ((month["byHour"], hours), (month["constant"], constant)):
        usd = pytest.approx(gpu_hours * H100_USD, abs=0.01)
        assert found["gpuHours"] == pytest.approx(gpu_hours, abs=0.1)
        assert [found[name] for name in ("cost", "costShared", "costWhole")] == [usd] * 3
        assert found["currency"] == "USD"
        each = gpu_hours * H100_USD / requests
        assert found["perRequest"] == pytest.approx(each, rel=1e-3)
        assert found["perMillionTokens"] == pytest.approx(each * 1e6 / 200, rel=1e-3)


def test_what_a_request_costs_is_of_all_requests_and_not_of_the_peak_alone(of_the_day):
    (found,) = json.loads(of_the_day[0].stdout)
    cost, month = found["atDemand"]["cost"], found["demandByHour"]["perMonth"]

    assert cost["perRequest"] == pytest.approx(month["constant"]["perRequest"], rel=1e-3)
    # All the time four replicas, for 22.8 requests/s in the mean: not for the 40 of the peak.
    assert cost["perRequest"] == pytest.approx(4 * H100_USD / 3600 / (sum(DAY) / 24), rel=1e-3)


def test_whole_instances_are_paid_in_each_hour(plan):
    asked = ("--gpu", "H200", "-o", "json")
    shared, whole = (
        figures(plan(a_csv((5, 40)), *asked, *more)) for more in ((), ("--whole-nodes",))
    )

    for found, paid in ((shared, "perHour"), (whole, "perHourWhole")):
        for each in found["steps"]:
            instances = -(-each["gpus"] // 8)
            assert each["perHourWhole"] == pytest.approx(instances * 63.296)
            assert each["perHour"] == each[paid]
    hours = shared["perMonth"]["constant"], whole["perMonth"]["constant"]
    assert hours[0]["gpuHours"] == shared["steps"][1]["gpus"] * 730.5
    assert hours[1]["gpuHours"] == -(-whole["steps"][1]["gpus"] // 8) * 8 * 730.5
    assert hours[0]["costShared"] < hours[0]["costWhole"]
    assert hours[1]["cost"] == hours[1]["costWhole"]


def test_the_plan_is_that_of_the_peak(of_the_day):
    (found,) = json.loads(of_the_day[0].stdout)

    assert found["plan"]["replicas"] == 4


def test_the_page_draws_it_and_says_it(of_the_day):
    page = of_the_day[1]

    assert_stands_alone(page)
    assert "serving/small by the hour. up to 4, the peak at hour 8" in page
    assert "1,893 GPU-hours, 13,025 USD a month" in page


def test_the_text_has_a_month_and_a_row_for_each_change(plan):
    text = plan(a_csv()).stdout

    assert "by the hour  1 to 4 replicas: 1,893 GPU-hours, 13,025 USD a month" in text
    assert "constant     4 replicas: 2,922 GPU-hours, 20,103 USD a month" in text
    assert "saves        1,029 GPU-hours, 35% of them, 7,078 USD a month" in text
    rows = [line.split()[:5] for line in text.splitlines() if line.strip().startswith("hour ")]
    assert rows == [
        ["hour", "0", "2.00", "1", "1"],
        ["hour", "6", "15.0", "2", "2"],
        ["hour", "8", "40.0", "4", "4"],
        ["hour", "18", "30.0", "3", "3"],
        ["hour", "21", "5.00", "1", "1"],
    ]


def test_csv_has_a_row_for_each_step(plan):
    rows = list(csv.DictReader(io.StringIO(plan(a_csv(), "-o", "csv").stdout)))

    assert [int(each["replicas"]) for each in rows] == list(REPLICAS)
    assert rows[8] == {
        "name": "small", "namespace": "serving", "at": "hour 8", "requestsPerSecond": "40.0",
        "replicas": "4", "gpus": "4", "currency": "USD", "perHour": "27.52",
        "perHourWhole": "27.52",
    }  # fmt: skip


def test_the_bounds_of_the_spec_hold_in_each_hour(plan):
    bounded = SMALL.replace("{maxReplicas: 8}", "{minReplicas: 2, maxReplicas: 3}")
    result = plan(a_csv(), "-o", "json", manifest=bounded)
    found = figures(result)

    assert result.exit_code == 2
    assert tuple(each["replicas"] for each in found["steps"]) == tuple(
        min(3, max(2, number)) for number in REPLICAS
    )
    assert found["stepsAboveMaxReplicas"] == 10
    assert "10 steps need more than maxReplicas" in plan(a_csv(), manifest=bounded).stdout


def scheduled(cron, duration, floor):
    """Return SMALL with a floor of replicas; hours of a file without dates are in UTC."""
    event = f"{{cron: '{cron}', duration: {duration}, minReplicas: {floor}}}"
    return SMALL.replace("{maxReplicas: 8}", f"{{maxReplicas: 8, schedules: [{event}]}}")


def test_a_floor_at_night_is_in_the_hours_and_in_both_months(plan):
    answer = plan(a_csv(), "-o", "json", manifest=scheduled("0 20 * * *", "12h", 6))
    found, (whole,) = figures(answer), json.loads(answer.stdout)
    hours = 12 * 6 + 10 * 4 + 2 * 3  # of a day; at 7:56 six are there

    assert [each["replicas"] for each in found["steps"]] == [
        *[6] * 8,
        *[4] * 10,
        *[3] * 2,
        *[6] * 4,
    ]
    assert found["perMonth"]["byHour"]["gpuHours"] == pytest.approx(hours * MONTH_DAYS, abs=0.1)
    assert found["perMonth"]["constant"]["gpuHours"] == pytest.approx(5 * 730.5, abs=0.1)
    constant = found["perMonth"]["constant"]["cost"]
    assert constant == pytest.approx(whole["atDemand"]["cost"]["perMonth"], rel=1e-3)


def test_a_floor_of_some_days_counts_by_their_share_and_shows_where_most_have_it(plan):
    week = [
        "time,rps",
        *(f"2026-11-{23 + day}T{hour:02}:00,2" for day in range(7) for hour in range(24)),
    ]
    text = plan("\n".join(week), "-o", "json", manifest=scheduled("0 0 * * 6,0", "24h", 5))
    found = figures(text)
    assert [each["replicas"] for each in found["steps"]] == [*[1] * 24 * 5, *[5] * 24 * 2]
    assert found["perMonth"]["byHour"]["gpuHours"] == pytest.approx(730.5 * 15 / 7, abs=0.1)

    of_a_day = figures(
        plan(a_csv((2,) * 24), "-o", "json", manifest=scheduled("0 0 * * 6,0", "24h", 5))
    )
    assert {each["replicas"] for each in of_a_day["steps"]} == {1}
    shares = 104 / 365  # Saturdays and Sundays of 2026
    assert of_a_day["perMonth"]["byHour"]["gpuHours"] == pytest.approx(
        730.5 * (1 + 4 * shares), rel=1e-4
    )


def test_a_peak_within_the_hours_counts_in_each(plan):
    peaked = SMALL.replace("requestsPerSecond: 8", "requestsPerSecond: 8\n    peakPercent: 200")
    found = figures(plan(a_csv((5, 10)), "-o", "json", manifest=peaked))

    assert [each["replicas"] for each in found["steps"]] == [1, 2]


def test_a_start_that_is_longer_than_a_step_reaches_over_several(plan):
    quarters = "hour,rps\n0:00,2\n0:15,2\n0:30,2\n0:45,40\n"
    month = figures(plan(quarters, "-o", "json", "--start-up", "20m"))["perMonth"]

    # 4 replicas for 15 min and the 20 before, 1 for the other 25: 165 replica-minutes an hour
    assert month["byHour"]["gpuHours"] == pytest.approx(165 / 60 * 730.5, abs=0.1)


SAME = {
    "json": ("day.json", json.dumps(DAY)),
    "objects": ("day.json", json.dumps([{"hour": k, "rps": rate} for k, rate in enumerate(DAY)])),
    "dates": (
        "day.csv",
        "Time, Requests\n"
        + "".join(f"2026-11-23T{k:02}:00+00:00, {3600 * rate}\n" for k, rate in enumerate(DAY)),
    ),
    "unix": (
        "day.csv",
        "timestamp,requests_per_s\n"
        + "".join(f"{1_795_392_000 + 3600 * k},{rate}\n" for k, rate in enumerate(DAY)),
    ),
}


@pytest.mark.parametrize("kind", SAME)
def test_other_forms_of_the_same_day_give_the_same(plan, kind):
    name, text = SAME[kind]
    found = figures(plan(text, "-o", "json", name=name))

    assert tuple(each["replicas"] for each in found["steps"]) == REPLICAS
    if kind in {"dates", "unix"}:
        assert found["peak"]["at"] == "Mon 2026-11-23 08:00 UTC"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,2.5\n1,3\n2,4\n", "columns 0, 2.5: a first line 'hour,requests_per_s'"),
        ("hour,requests_per_s\n0,1\n2,1\n3,1\n", "day.csv:4: 60.0 min after the row before"),
        ("hour,requests_per_s\n0,1\n1,-1\n", "day.csv:3: requests_per_s: '-1' is no number"),
        ("hour,requests_per_s\n0,1\n1,\n", "day.csv:3: requests_per_s: '' is no number"),
        ("hour,requests_per_s\n0,1\nnoon,1\n", "day.csv:3: hour: 'noon' is no time"),
        ("hour,requests_per_s\n0,0\n1,0\n", "no request comes in any step"),
        ("hour,requests_per_s\n0,1\n", "rates of fewer than two hours"),
        ("hour,requests_per_s\n0,2\n1,2,5\n", "day.csv:3: more fields than the first line"),
        ("time,rps\n1795392000000,1\n1795395600000,1\n", "is no time"),
        ("hour,rps\n0,1\n48,1\n", "a minute to a day"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_row_and_the_cure(plan, text, said):
    result = plan(text)

    assert result.exit_code == 3
    assert said in result.stderr
    assert "day.csv" in result.stderr


def test_every_row_that_is_wrong_is_named(plan):
    result = plan("hour,rps\n0,1\n1,many\n2,3\nnoon,4\n4,-5\n")

    assert result.exit_code == 3
    places = [re.search(r"day.csv:(\d)", line)[1] for line in result.stderr.splitlines()]
    assert places == ["3", "5", "6"]


def test_a_thousand_wrong_rows_are_a_screen_of_lines_and_their_number(plan):
    lines = plan("hour,rps\n" + "noon,1\n" * 1000).stderr.splitlines()

    assert len(lines) == 20
    assert lines[-1].endswith("; and 980 more")


def test_a_time_in_steps_of_one_is_in_hours(plan):
    found = figures(plan(a_csv().replace("hour,", "time,"), "-o", "json"))

    assert found["stepSeconds"] == 3600
    assert tuple(each["replicas"] for each in found["steps"]) == REPLICAS


def test_the_units_of_an_option_are_those_of_traces():
    assert set(TIME_UNITS) == set(UNITS_PER_S)


def test_the_unit_of_a_trace_may_be_given(plan):
    rows = "".join(f"{number * 500},2000,200\n" for number in range(20_000))
    text = f"arrival,prompt_tokens,output_tokens\n{rows}".replace("arrival,", "timestamp,")
    asked = plan(text, "--time-unit", "ms", "-o", "json")

    # 20,000 requests, one each 500 ms
    assert asked.exit_code == 0, asked.stderr
    assert figures(asked)["peak"]["requestsPerSecond"] == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{}", "no list"), ("[1, 2", "day.json: "), ('[1, "many"]', "day.json: row 2: ")],
)
def test_what_is_wrong_in_json_is_named_too(plan, text, said):
    result = plan(text, name="day.json")

    assert result.exit_code == 3
    assert said in result.stderr


@pytest.mark.parametrize(
    "options", [("--rps", "4"), ("--prometheus", "http://localhost:9")], ids=lambda each: each[0]
)
def test_two_demands_are_refused(plan, options):
    result = plan(a_csv(), *options)

    assert result.exit_code == 3
    assert "leave one out" in result.stderr


def test_a_trace_gives_rates_and_lengths(plan):
    # Two hours: 3,600 requests of 1000 + 100 tokens, then 7,200 of 3000 + 100.
    rows = [(k, 1000) for k in range(3600)] + [(3600 + k / 2, 3000) for k in range(7200)]
    trace = "".join(f"{at_s},{tokens},100\n" for at_s, tokens in rows)
    result = plan(f"arrival_s,prompt_tokens,output_tokens\n{trace}", "-o", "json")
    found = figures(result)

    assert [each["requestsPerSecond"] for each in found["steps"]] == pytest.approx([1, 2], rel=1e-3)
    assert "demand.promptTokens.mean=2333, demand.promptTokens.p99=3000" in result.stderr
    assert "no whole days" in result.stderr


def test_what_replay_writes_of_prometheus_is_a_demand_too(tmp_path):
    trace = tmp_path / "fleet.csv.gz"
    with serving(fleet) as server:
        replayed = run(
            "replay", "-f", "-", "--prometheus", server.url, "--last", "1h", "--policy", "static:1",
            "--seeds", 1, "--processes", 1, "--save-trace", trace, text=SMALL,
        )  # fmt: skip
    found = figures(run("plan", "-f", "-", "--demand-file", trace, "-o", "json", text=SMALL))

    assert replayed.exit_code == 0, replayed.output
    (step,) = found["steps"]
    assert step["requestsPerSecond"] == pytest.approx(PER_MINUTE / 60, rel=1e-3)


def test_what_prometheus_counted_is_a_demand_of_these_hours():
    with serving(fleet) as server:
        result = run(
            "plan", "-f", "-", "--prometheus", server.url, "--last", "3h", "-o", "json", text=SMALL
        )
    found = figures(result)

    assert [each["requestsPerSecond"] for each in found["steps"]] == pytest.approx(
        [PER_MINUTE / 60] * 3, rel=1e-3
    )
    assert 'pod=~"small-.+"' in server.asked[0].query["query"]
    lengths = dict(re.findall(r"(\w+)Tokens[.]mean=(\d+)", result.stderr))
    assert int(lengths["prompt"]) == pytest.approx(1800, rel=0.02)
    assert int(lengths["output"]) == pytest.approx(1100, rel=0.02)


def test_several_objects_have_no_demand_in_common(plan):
    result = plan(a_csv(), manifest=f"{SMALL}---\n{SMALL.replace('small', 'other')}")

    assert result.exit_code == 3
    assert "is of one ModelDeployment, not of 2" in result.stderr
