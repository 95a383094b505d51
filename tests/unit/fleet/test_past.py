"""Who is asked about of the time before this process, and what one failure costs."""

from dataclasses import replace

import pytest

from fleet_builders import NOW_S, a_manifest, a_state
from tonnage.cluster.calls import PrometheusError
from tonnage.estimate.forecasters import BIN_S
from tonnage.estimate.past import LABEL, LEAST_STEP_S
from tonnage.fleet.past import AGAIN_S, PART_OBJECTS, PastReader
from tonnage.settings import Settings

SLO = {"timeToFirstToken": {"p95": "2s"}, "attainment": {"window": "24h"}}


def an_object(name="llama", namespace="serving", *, created="2020-01-01T00:00:00Z", slo=SLO):
    manifest = a_manifest(name, slo=slo)
    state = a_state(manifest)
    view = replace(state.view, namespace=namespace, uid=f"{namespace}/{name}", created=created)
    return replace(state, view=view)


class Prometheus:
    """Answers with one request/s, and one request late of ten, for each object that is named."""

    def __init__(self, *, names=("llama",), failing=(), error=None):
        self.names, self.failing, self.asked = names, failing, []
        self.error = error or PrometheusError("too large", reason="ResponseTooLarge")

    def __call__(self, _, text, steps):
        self.asked.append((text, steps))
        if any(f'namespace="{each}"' in text for each in self.failing):
            raise self.error
        bounds = {"2.0": 9.0, "+Inf": 10.0} if "increase" in text else {None: 1.0}
        return [
            ({LABEL: name} | ({"le": le} if le else {}), dict.fromkeys(range(steps.number), value))
            for name in self.names
            if f"{name}" in text
            for le, value in bounds.items()
        ]


def a_reader(ask):
    reader = PastReader(ask=ask, settings=Settings(prometheus_url="http://p"))
    reader.begin(NOW_S)
    return reader


def looked(ask, *states, at_s=NOW_S):
    reader = a_reader(ask)
    assert reader.look(states, at_s) == frozenset()
    return reader.found


def test_all_of_a_week_and_of_the_window_comes_with_one_round():
    ask = Prometheus()

    [found] = looked(ask, an_object()).values()

    assert len(found.means) == 8 * 144
    assert len(found.peaks) == 144
    assert found.ledger.limits["TTFT 2.00 s"][NOW_S // 3600 - 3] == (40.0, 4.0)
    assert found.ledger.is_whole(NOW_S)
    assert len(ask.asked) == 3
    assert min(steps.step_s for _, steps in ask.asked) >= 300


def test_bins_end_where_this_process_began():
    [found] = looked(Prometheus(), an_object()).values()

    assert max(found.means) == NOW_S // BIN_S - 1
    assert max(found.ledger.limits["TTFT 2.00 s"]) == (NOW_S - LEAST_STEP_S) // 3600


def test_nobody_is_asked_about_twice():
    ask = Prometheus()
    reader = a_reader(ask)
    reader.look([an_object()], NOW_S)
    num_asked = len(ask.asked)

    reader.look([an_object()], NOW_S + 10 * AGAIN_S)

    assert len(ask.asked) == num_asked


def test_an_object_that_was_made_since_has_no_past_to_ask_for():
    ask = Prometheus()

    [found] = looked(ask, an_object(created="2040-01-01T00:00:00Z")).values()

    assert ask.asked == []
    assert (found.means, found.ledger.since_s) == ({}, 0)


def test_what_prometheus_does_not_know_is_counted_since_this_process_began():
    [found] = looked(Prometheus(names=()), an_object()).values()

    assert (found.means, found.peaks, found.ledger.limits) == ({}, {}, {})
    assert found.ledger.since_s == pytest.approx(NOW_S, abs=LEAST_STEP_S)


@pytest.mark.parametrize(
    "error",
    [PrometheusError("no", reason="QueryRefused"), OSError("no token"), ZeroDivisionError()],
)
def test_a_part_that_fails_costs_no_other_and_is_asked_again(error):
    states = [an_object(namespace="blue"), an_object(namespace="green")]
    ask = Prometheus(failing=("blue",), error=error)
    reader = a_reader(ask)

    assert reader.look(states, NOW_S) == frozenset()

    blue, green = reader.found["blue/llama"], reader.found["green/llama"]
    assert (len(blue.means), len(green.means)) == (0, 1152)
    assert blue.ledger.since_s == pytest.approx(NOW_S, abs=LEAST_STEP_S)
    ask.failing = ()
    reader.look(states, NOW_S + AGAIN_S - 1)
    assert not reader.found["blue/llama"].means
    reader.look(states, NOW_S + AGAIN_S)
    assert reader.found["blue/llama"].means


def test_a_few_objects_of_one_namespace_and_window_are_a_part():
    names = [f"llama-{each}" for each in range(PART_OBJECTS + 1)]
    of_an_hour = an_object("qwen", slo=SLO | {"attainment": {"window": "1h"}})
    ask = Prometheus(names=names)

    looked(ask, *[an_object(name) for name in names], of_an_hour)

    parts = {text.partition(f"{LABEL}=~")[2].partition('"}')[0] for text, _ in ask.asked}
    assert sorted(each.count("|") + 1 for each in parts if "le=" not in each) == [1, 1, 50]


def test_what_comes_after_another_lead_began_is_not_taken_over():
    begun = []
    reader = a_reader(Prometheus())
    reader.start = begun.append
    reader.begin(NOW_S)
    assert reader.look([an_object()], NOW_S) == {"serving/llama"}
    reader.begin(NOW_S + 60)

    begun.pop()()
    awaited = reader.look([an_object()], NOW_S + 60)

    assert (awaited, reader.found) == ({"serving/llama"}, {})


def test_objects_are_asked_about_anew_where_the_clock_was_set_back():
    ask = Prometheus()
    reader = a_reader(ask)
    reader.look([an_object()], NOW_S)
    reader.found.clear()

    reader.look([an_object()], NOW_S - 3600)

    assert max(reader.found["serving/llama"].means) == (NOW_S - 3600) // BIN_S - 1
