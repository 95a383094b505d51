"""Known events in the spec: what is taken, and what only a calendar can refuse."""

from zoneinfo import available_timezones

import pytest

from bad_input import SCHEDULE, SCHEDULES, manifest
from tonnage.api.objects import InvalidSpecError, parse_model_deployment


def parsed(**changes):
    [schedule] = parse_model_deployment(a_manifest(**changes)).spec.scaling.schedules
    return schedule


def a_manifest(**changes):
    return manifest((SCHEDULES, [dict(SCHEDULE) | changes]))


def test_an_event_is_read_as_it_is_written():
    schedule = parsed(requestsPerSecond="0.5")

    assert (schedule.cron, schedule.time_zone) == ("0 8 * * 1-5", "Europe/Berlin")
    assert (schedule.duration, schedule.min_replicas) == ("2h", 4)
    assert schedule.requests_per_second == "0.5"


def test_an_event_without_a_zone_is_in_utc():
    content = {key: value for key, value in SCHEDULE.items() if key != "timeZone"}
    [schedule] = parse_model_deployment(manifest((SCHEDULES, [content]))).spec.scaling.schedules

    assert schedule.time_zone == "Etc/UTC"


@pytest.mark.parametrize(
    "cron",
    ["*/15 * * * *", "0 8,20 1-7 * MON", "30 22 * jan-mar 0", "0 0 29 2 *", "0-30/10 6 * * *"],
)
def test_cron_may_have_lists_ranges_steps_and_names(cron):
    assert parsed(cron=cron).cron == cron


@pytest.mark.parametrize("duration", ["1m", "90m", "168h", "10080m"])
def test_an_event_lasts_from_a_minute_to_a_week(duration):
    assert parsed(duration=duration).duration == duration


@pytest.mark.parametrize(
    ("cron", "why"),
    [
        ("60 8 * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 8 32 * *", "bad day-of-month"),
        ("0 8 30 2 *", "bad day-of-month"),  # no February has one
        ("0 8 * 13 *", "bad month"),
        ("0 8 * * 8", "bad day-of-week"),
        ("0 8 * * FRY", "bad day-of-week"),
        ("0 20-8 * * *", "bad hour"),
        ("*/0 * * * *", "bad minute"),
    ],
)
def test_what_is_no_cron_is_refused_and_the_field_of_it_named(cron, why):
    with pytest.raises(InvalidSpecError) as refusal:
        parsed(cron=cron)

    said = str(refusal.value)
    assert "spec.scaling.schedules.0.cron: must be a cron expression" in said
    assert f"{why} (read: '{cron}')" in said


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "Europe", "Berlin", "Mars/Olympus/Mons"])
def test_a_zone_that_nobody_knows_is_refused_by_name(zone):
    with pytest.raises(InvalidSpecError) as refusal:
        parsed(timeZone=zone)

    said = str(refusal.value)
    assert "spec.scaling.schedules.0.timeZone: must be the name of an IANA time zone" in said
    assert f"this name is unknown (read: '{zone}')" in said


def test_every_zone_that_means_the_same_everywhere_is_taken():
    of_this_machine = {"localtime"}

    for zone in available_timezones() - of_this_machine:
        assert parsed(timeZone=zone).time_zone == zone
