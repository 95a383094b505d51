"""What is said of a settings file that somebody edits while the operator runs."""

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tonnage.fleet.settings_file import SettingsFile, read_settings

GOOD = "prometheusUrl: http://prometheus.test\n"


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "settings.yaml"
    made.write_text(GOOD)
    return made


@pytest.fixture
def valid():
    return Gauge("valid", "1 or 0", registry=CollectorRegistry())


def value(gauge):
    [family] = gauge.collect()
    return family.samples[0].value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "tickS: 0\n", "settings.tickS"),
        (GOOD + "tickSeconds: 5\n", "settings.tickSeconds"),
        ("{", "settings.yaml: "),
        ("\xff", "settings.yaml: "),
        ("[" * 20_000, "settings.yaml: "),
        ("tickS: !!bool maybe", "settings.yaml: "),
        ("tickS: !!timestamp x", "settings.yaml: "),
        ("tickS: !!int ''", "settings.yaml: "),
        (None, "No such file"),
    ],
)
def test_a_wrong_edit_is_told_once_and_the_next_right_one_too(path, valid, text, said, caplog):
    edited = SettingsFile(str(path), valid)
    path.unlink()
    if text:
        path.write_text(text, encoding="latin-1")
    edited.look()
    edited.look()

    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert said in record.msg.fields["message"]
    assert value(valid) == 0

    path.write_text(GOOD + "tickS: 5\n")
    edited.look()
    edited.look()

    assert [each.msg.event for each in caplog.records[1:]] == ["the settings file was edited"]
    assert value(valid) == 1


def test_a_file_that_stays_is_no_news(path, valid, caplog):
    edited = SettingsFile(str(path), valid)
    path.write_text(GOOD)
    edited.look()

    assert caplog.records == []
    assert value(valid) == 1


def test_a_wrong_file_is_refused_by_field_and_limit(path):
    path.write_text(GOOD + "tickS: 0\n")

    with pytest.raises(ValueError, match=r"settings\.tickS.*greater than 0"):
        read_settings(str(path))
