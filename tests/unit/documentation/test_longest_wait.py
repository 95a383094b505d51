"""Who waits longest in an overload: the table of the page on bursts is what is simulated."""

import math
import random
import re
from array import array
from pathlib import Path
from statistics import median

import pytest
from replay_cases import Lengths, manifest

from tonnage.api.objects import parse_model_deployment
from tonnage.replay.cluster import ReplayedModel, StartupTime
from tonnage.replay.evaluation import LatencyLimits, fates
from tonnage.replay.ground_truth import GroundTruth
from tonnage.replay.policies import ConstantFleet
from tonnage.replay.simulation import SETTINGS, Simulation, first_plan
from tonnage.replay.traces import Trace, drawn_from
from tonnage.sizing.expected import slo_of

PAGE = Path(__file__).parents[3] / "deploy/site/pages/how-to/bursts.md"
ROW = re.compile(r"^\| ([\d.]+) times for (\d+) min \| (.+) \|$", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text())
LENGTHS = Lengths(prompt_mean=1000, prompt_p99=2000, output_mean=200, output_p99=800)
CAPACITY_PER_S, CALM, BEFORE_S = 22.65, 0.7, 300.0
LIMIT_S, CLIENT_S = 2.0, 60.0


def a_trace(times, overload_s, duration_s):
    chance, at_s = random.Random(60), 0.0  # noqa: S311
    arrivals, prompts, outputs = array("d"), array("q"), array("q")
    while True:
        share = times if BEFORE_S <= at_s < BEFORE_S + overload_s else CALM
        at_s += chance.expovariate(share * CAPACITY_PER_S)
        if at_s >= duration_s:
            return Trace(arrival_s=arrivals, prompt_tokens=prompts, output_tokens=outputs)
        arrivals.append(at_s)
        prompts.append(max(1, round(chance.lognormvariate(math.log(956), 0.3))))
        outputs.append(max(1, round(chance.lognormvariate(math.log(167), 0.6))))


def outcomes(times, overload_s):
    duration_s = BEFORE_S + overload_s * (1 + (times - 1) / (1 - CALM)) + 600
    given = manifest(LENGTHS, CALM * CAPACITY_PER_S)
    model = parse_model_deployment(given)
    trace = a_trace(times, overload_s, duration_s)
    traffic = drawn_from(trace, duration_s=duration_s, context_tokens=8192, cached_fraction=0.0)
    served = ReplayedModel(
        model=model, traffic=traffic, truth=GroundTruth(), start=StartupTime(mean_s=120)
    )
    one = ConstantFleet(flags=first_plan(model).flags, replicas=1)
    record = Simulation(served, settings=SETTINGS, controller=one).run(duration_s)
    return fates(record, traffic, LatencyLimits.of(slo_of(model.spec)))


@pytest.mark.parametrize(("times", "minutes", "cells"), ROWS)
def test_the_table_says_what_is_simulated(times, minutes, cells):
    overload_s = 60.0 * int(minutes)
    found = outcomes(float(times), overload_s)

    waits = list(zip(found.arrival_s, found.ttft_s, strict=True))
    during = [ttft_s for at_s, ttft_s in waits if BEFORE_S <= at_s < BEFORE_S + overload_s]
    late = [ttft_s for _, ttft_s in waits if ttft_s > LIMIT_S]
    shares = [sum(each <= LIMIT_S for each in during), sum(each > CLIENT_S for each in during)]
    percents = [f"{100 * each / len(during):.0f} %" for each in shares]
    longest = [f"{each / 60:.1f} min" for each in (median(late), max(late))]
    assert " | ".join([*percents, *longest]) == cells
    assert found.num_unserved == 0


def test_the_table_has_three_overloads():
    assert len(ROWS) == 3
