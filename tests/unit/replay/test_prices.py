"""A replay whose GPUs have a buyer's prices: the split that is replayed is chosen by them."""

from dataclasses import replace

from fleet_builders import a_model
from tonnage.catalog.gpu import Price, Rent, built_in_gpus
from tonnage.replay.cluster import StartupTime
from tonnage.replay.policies import Scenario
from tonnage.replay.policy import policy_of
from tonnage.replay.simulation import SyntheticWorkload, first_plan
from tonnage.replay.traffic import SHAPES

MODEL = a_model(
    model={"id": "meta-llama/Llama-3.1-8B-Instruct"},
    hardware={"gpu": "H100"},
    demand={
        "requestsPerSecond": 8,
        "promptTokens": {"mean": 2000, "p99": 4000},
        "outputTokens": {"mean": 200},
    },
)
SINGLE_IS_DEAR = Price(
    rents=(Rent(usd_per_hour=90, num_gpus=1), Rent(usd_per_hour=8, num_gpus=8)),
)
GPUS = {**built_in_gpus(), "H100": replace(built_in_gpus()["H100"], price=SINGLE_IS_DEAR)}


def test_the_first_plan_is_the_cheapest_at_these_prices():
    assert first_plan(MODEL).flags.parallelism.num_gpus == 1
    assert first_plan(MODEL, GPUS).flags.parallelism.num_gpus > 1


def test_the_operator_stays_on_it():
    planned = first_plan(MODEL, GPUS)
    scenario = Scenario(
        model=MODEL,
        requests=SyntheticWorkload(shape=SHAPES["steady"], requests_per_s=0.8),
        start=StartupTime(mean_s=60),
        planned=planned,
        target=0.95,
        gpus=GPUS,
    )
    found = scenario.outcome_of(policy_of("tonnage"))
    hours, duration_s = found.judged.gpu_hours, scenario.drawn.duration_s

    assert not found.faults
    assert hours >= planned.flags.parallelism.num_gpus * duration_s / 3600
