"""The bench of what is read, on a recording that a model of an engine wrote."""

import gzip
import json
import random
from itertools import accumulate

import pytest
from click.testing import CliRunner
from recording import main

from recordings import change_points

pytestmark = pytest.mark.thorough

LADDERS_S = {
    "time_to_first_token_seconds": (0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    "request_time_per_output_token_seconds": (0.01, 0.025, 0.05, 0.075, 0.1),
}
EVERY_S = 5.0
SLOTS = 4


def a_log(seed=3):
    """Ten minutes at 0.5 requests/s, five at 2, which is too much for four slots, ten at 0.5."""
    chance = random.Random(seed)  # noqa: S311
    gaps = [*[2.0] * 300, *[0.5] * 600, *[2.0] * 300]
    arrivals_s = accumulate(gap * chance.expovariate(1) for gap in gaps)
    free_s = [0.0] * SLOTS
    for arrival_s in arrivals_s:
        slot = free_s.index(min(free_s))
        start_s = max(arrival_s, free_s[slot])
        output_tokens = chance.randint(2, 120)
        prompt_tokens = chance.randint(10, 400)
        end_s = start_s + 0.2 + 0.03 * (output_tokens - 1)
        free_s[slot] = end_s
        yield {
            "arrival_s": arrival_s,
            "prompt_tokens": prompt_tokens,
            "output_tokens": output_tokens,
            "ttft_s": start_s + 0.2 - arrival_s,
            "e2e_s": end_s - arrival_s,
            "start_s": start_s,
        }


def page(log, at_s):
    """The metrics of an engine that served this log so far."""
    started = [e for e in log if e["arrival_s"] + e["ttft_s"] <= at_s]
    ended = [e for e in log if e["arrival_s"] + e["e2e_s"] <= at_s]
    scheduled = sum(e["start_s"] <= at_s for e in log)
    arrived = sum(e["arrival_s"] <= at_s for e in log)
    figures = {
        "request_success_total": len(ended),
        "num_requests_running": scheduled - len(ended),
        "num_requests_waiting": arrived - scheduled,
        "request_generation_tokens_count": len(ended),
        "request_generation_tokens_sum": sum(e["output_tokens"] for e in ended),
        "request_prompt_tokens_sum": sum(e["prompt_tokens"] for e in ended),
        "time_to_first_token_seconds_count": len(started),
        "prompt_tokens_total": sum(e["prompt_tokens"] for e in started),
    }
    yield from (f'vllm:{name}{{engine="0"}} {value}' for name, value in figures.items())
    latencies = {
        "time_to_first_token_seconds": [e["ttft_s"] for e in started],
        "request_time_per_output_token_seconds": [
            (e["e2e_s"] - e["ttft_s"]) / (e["output_tokens"] - 1) for e in ended
        ],
    }
    for name, values in latencies.items():
        for le in (*LADDERS_S[name], "+Inf"):
            count = sum(value <= float(le) for value in values)
            yield f'vllm:{name}_bucket{{engine="0",le="{le}"}} {count}'


def write(folder, log, *, pack=gzip.compress, suffix=".gz"):
    (folder / "requests.jsonl").write_text("".join(json.dumps(each) + "\n" for each in log))
    last_s = log[-1]["arrival_s"] + 30
    lines = []
    for number in range(int(last_s / EVERY_S)):
        at_s = number * EVERY_S
        lines += [f"# scrape_at_s {at_s:.3f}", *page(log, at_s)]
    (folder / f"scrapes.txt{suffix}").write_bytes(pack("\n".join(lines).encode()))


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recording")
    write(folder, list(a_log()))
    return run(folder)


def run(folder, *options):
    result = CliRunner().invoke(main, [str(folder), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


class TestReport:
    def test_finds_the_phases_and_their_rates(self, told):
        assert told["recording"] == {
            "requests": 1200,
            "scrapes": told["recording"]["scrapes"],
            "scrape_interval_s": 5,
        }
        rates = [each["arrival_rate"]["counted"]["log"] for each in told["phases"]]
        assert rates == pytest.approx([0.5, 2, 0.5], rel=0.2)

    def test_says_how_far_off_arrivals_are_and_from_how_many_requests(self, told):
        for phase in told["phases"]:
            counted = phase["arrival_rate"]["counted"]
            assert abs(counted["error"]) < 0.01
            assert counted["requests"] > 100
            assert counted["window_s"] == 15

    def test_says_how_far_off_lengths_queue_and_attainment_are(self, told):
        whole = told["whole"]
        assert abs(whole["prompt_tokens"]["error"]) < 1e-3
        assert abs(whole["output_tokens"]["error"]) < 1e-3
        assert whole["queue"]["waiting"]["mean_size_of_error"] < 0.1
        assert told["phases"][1]["queue"]["waiting"]["log_mean"] > 5
        assert told["largest_errors"]["attainment_on_bounds"] < 1e-3

    def test_takes_phases_that_are_given_and_scrapes_that_are_not_packed(self, tmp_path):
        write(tmp_path, list(a_log(4))[:300], pack=bytes, suffix="")

        found = run(tmp_path, "--phases", "0:100,100:300")

        assert [(each["from_s"], each["to_s"]) for each in found["phases"]] == [
            (0, 100),
            (100, 300),
        ]

    def test_shows_an_engine_that_counts_wrongly(self, tmp_path):
        log = list(a_log(5))[:300]
        write(tmp_path, log)
        kept = "".join(json.dumps(each) + "\n" for each in log[::2])
        (tmp_path / "requests.jsonl").write_text(kept)

        assert run(tmp_path)["largest_errors"]["arrival_rate"] > 0.5

    def test_refuses_phases_that_are_none(self, tmp_path):
        result = CliRunner().invoke(main, [str(tmp_path), "--phases", "0-100"])

        assert result.exit_code == 2
        assert "FROM:TO" in result.output


class TestChangePoints:
    def test_are_where_the_rate_changes(self):
        assert change_points([1] * 30 + [6] * 40 + [1] * 30) == [0, 30, 70, 100]

    def test_are_none_in_a_steady_stream(self):
        chance = random.Random(1)  # noqa: S311
        for _ in range(20):
            gaps = accumulate(chance.expovariate(2) for _ in range(1000))
            counts = [0] * 200
            for at_s in gaps:
                if at_s < 200:
                    counts[int(at_s)] += 1
            assert change_points(counts) == [0, 200]

    @pytest.mark.parametrize("counts", [[0], [3, 0], [0] * 50])
    def test_are_none_in_a_short_or_empty_one(self, counts):
        assert change_points(counts) == [0, len(counts)]
