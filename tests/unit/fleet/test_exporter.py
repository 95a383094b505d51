"""What the metrics page shows of a tick, and for how long."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tonnage.control.series import FAMILIES, FleetSeries, MetricSample, ObjectSeries
from tonnage.fleet.heartbeat import BORN_S, FLEET_FAMILIES, STALE_S, Exporter, Heartbeat

LLAMA, QWEN = ("serving", "llama"), ("serving", "qwen")
DECIDED = MetricSample("tonnage_decisions", 1.0, ("Demand", "up"))
READY = MetricSample("tonnage_replicas_ready", 3)


def an_object(key=LLAMA, *, gauges=(READY,), counts=()):
    return ObjectSeries(key=key, gauges=tuple(gauges), counts=tuple(counts))


def a_tick(*objects, **changes):
    told = {"num_objects": len(objects), "num_left_out": 0, "num_faults": 0, "is_blind": False}
    return FleetSeries(objects=objects, **(told | changes))


class Page:
    """An exporter, its registry and a clock that a test sets."""

    def __init__(self):
        self.now_s = 0.0
        self.exporter = Exporter(lambda: self.now_s)
        self.registry = CollectorRegistry()
        self.registry.register(self.exporter)

    def value(self, name, key=None, **labels):
        place = dict(zip(("namespace", "name"), key, strict=True)) if key else {}
        return self.registry.get_sample_value(name, place | labels)


@pytest.fixture
def page():
    return Page()


def test_an_object_is_shown_by_namespace_and_name(page):
    page.exporter.note(a_tick(an_object(), num_left_out=7, num_objects=8))

    assert page.value("tonnage_replicas_ready", LLAMA) == 3
    assert page.value("tonnage_objects") == 8
    assert page.value("tonnage_objects_without_series") == 7
    assert page.value("tonnage_blind") == 0


def test_bugs_are_counted_over_ticks(page):
    for num_faults in (0, 2, 1):
        page.exporter.note(a_tick(num_faults=num_faults))

    assert page.value("tonnage_internal_errors_total") == 3


def test_counters_add_up_over_ticks_and_each_by_its_labels(page):
    down = MetricSample("tonnage_decisions", 1.0, ("ScaleDownRateLimited", "down"))
    for counts in ([DECIDED], [], [DECIDED, down]):
        page.exporter.note(a_tick(an_object(counts=counts)))
    page.now_s = float(BORN_S)

    name = "tonnage_decisions_total"
    assert page.value(name, LLAMA, reason="Demand", direction="up") == 2
    assert page.value(name, LLAMA, reason="ScaleDownRateLimited", direction="down") == 1


def test_a_new_counter_is_shown_as_zero_first_or_it_would_have_no_increase(page):
    labels = {"reason": "Demand", "direction": "up"}
    page.exporter.note(a_tick(an_object(counts=[DECIDED])))
    assert page.value("tonnage_decisions_total", LLAMA, **labels) == 0

    page.now_s = BORN_S - 1.0
    page.exporter.note(a_tick(an_object(counts=[DECIDED])))
    assert page.value("tonnage_decisions_total", LLAMA, **labels) == 0

    page.now_s = float(BORN_S)
    assert page.value("tonnage_decisions_total", LLAMA, **labels) == 2


def test_a_deleted_object_takes_its_series_and_counters_with_it(page):
    page.exporter.note(a_tick(an_object(counts=[DECIDED]), an_object(QWEN)))
    page.exporter.note(a_tick(an_object(QWEN)))

    assert page.value("tonnage_replicas_ready", LLAMA) is None
    assert page.value("tonnage_replicas_ready", QWEN) == 3

    page.exporter.note(a_tick(an_object(), an_object(QWEN)))
    assert page.value("tonnage_decisions_total", LLAMA, reason="Demand", direction="up") is None


def test_a_gauge_that_is_not_known_any_more_goes(page):
    page.exporter.note(a_tick(an_object()))
    page.exporter.note(a_tick(an_object(gauges=())))

    assert page.value("tonnage_replicas_ready", LLAMA) is None


def test_the_age_of_the_last_tick_grows_until_the_next(page):
    assert page.value("tonnage_tick_age_seconds") is None

    page.exporter.note(a_tick())
    page.now_s = 42.0
    assert page.value("tonnage_tick_age_seconds") == 42

    page.exporter.note(a_tick())
    assert page.value("tonnage_tick_age_seconds") == 0


def test_what_is_old_is_not_shown_but_its_age_is(page):
    page.exporter.note(a_tick(an_object()))
    page.now_s = float(STALE_S)

    assert page.value("tonnage_replicas_ready", LLAMA) is None
    assert page.value("tonnage_objects") is None
    assert page.value("tonnage_tick_age_seconds") == STALE_S


def test_who_does_not_lead_any_more_shows_no_object_and_no_age(page):
    page.exporter.note(a_tick(an_object(counts=[DECIDED])))
    page.exporter.forget()

    assert page.value("tonnage_replicas_ready", LLAMA) is None
    assert page.value("tonnage_tick_age_seconds") is None


def test_the_page_can_be_read_whatever_an_object_is_called(page):
    odd = ("serving", 'a"b\\c\nd')
    page.exporter.note(a_tick(an_object(odd)))

    assert page.value("tonnage_replicas_ready", odd) == 3
    text = generate_latest(page.registry).decode()
    named = {
        sample.labels["name"]
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "name" in sample.labels
    }
    assert named == {odd[1]}


def test_every_family_is_on_the_page_of_the_operator_also_while_empty():
    named = {family.name for family in Heartbeat().registry.collect()}

    assert named >= {*FAMILIES, *FLEET_FAMILIES}


def test_the_steps_of_a_tick_are_measured_each():
    heartbeat = Heartbeat()
    with heartbeat.step("observe"):
        pass

    value = heartbeat.registry.get_sample_value
    assert value("tonnage_tick_step_seconds_count", {"step": "observe"}) == 1
    assert value("tonnage_build_info", {"version": "0.2.0"}) == 1
