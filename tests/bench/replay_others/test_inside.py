from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import pytest

from replay_others.inside import (
    ReadsEngines,
    probe_of,
    true_requests_per_s,
)
from rival_builders import a_record
from tonnage.replay.baselines.rule import gauges

pytestmark = pytest.mark.thorough


@dataclass
class Watch:
    """Asks for two replicas, three from two minutes on, and records what it was shown."""

    table: Mapping = field(default_factory=lambda: gauges("running", "waiting"))
    interval_s: float = 15.0
    seen: list = field(default_factory=list)
    alone: list = field(default_factory=list)

    def replicas(self, signals):
        self.seen.append(signals)
        self.alone = self.alone or [probe_of(signals)]
        return 3 if signals.at_s >= 120 else 2


@cache
def watched(wrap=lambda rule: rule):
    rule = Watch()
    return rule, a_record(wrap(rule))


def test_engines_tell_at_once_what_prometheus_tells_after_a_scrape():
    now, _ = watched(ReadsEngines)
    scraped, _ = watched()

    for signals in now.seen:
        held = signals.total("running") + signals.total("waiting")
        # What has come in the step under way is in neither gauge.
        assert held <= signals.in_flight <= held + 60
    assert scraped.seen[0].total("running") == 0
    assert now.seen[-1].by_pod("running").keys() == {"llama-0", "llama-1", "llama-2"}


def test_an_idle_replica_is_probed():
    rule, _ = watched()
    (probe,) = rule.alone

    assert 0 < probe.itl_s < probe.ttft_s < 1


def test_the_true_goodput_is_above_none_and_near_what_is_believed_where_engines_are_as_believed():
    rule, _ = watched()
    signals = rule.seen[0]

    assert true_requests_per_s(signals) == pytest.approx(signals.believed_requests_per_s, rel=0.15)
