"""A folder of calibration files: what is no calibration is named and left out."""

import json
import logging

import pytest

from calibration_builders import KEY, a_file
from tonnage.estimate.calibration_file import dump, load_test_of
from tonnage.fleet.settings_file import MAX_BYTES, read_calibrations

OTHER = KEY.model_copy(update={"gpu": "H100"})


def test_files_are_found_by_the_identity_of_their_keys(tmp_path):
    (tmp_path / "one.json").write_text(dump(a_file()))
    (tmp_path / "two.json").write_text(dump(a_file(key=OTHER, measured_at_s=5.0)))
    (tmp_path / "notes.txt").write_text("not mine")

    found = read_calibrations(tmp_path)

    assert found == {
        KEY.identity: load_test_of(a_file()),
        OTHER.identity: load_test_of(a_file(key=OTHER, measured_at_s=5.0)),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "utf-8"),
        (b'{"version": 1, "steps": 1, "steps": 2}', "not JSON: key 'steps' is given twice"),
        (b'{"version": 2}', "not a calibration file of version 1: its version is 2"),
        (json.dumps(json.loads(dump(a_file())) | {"steps": 0}).encode(), "steps: "),
        (b" " * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
    ],
)
def test_a_bad_file_is_named_and_the_others_stand(tmp_path, caplog, content, message):
    (tmp_path / "bad.json").write_bytes(content)
    (tmp_path / "good.json").write_text(dump(a_file()))

    found = read_calibrations(tmp_path)

    assert list(found) == [KEY.identity]
    [said] = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert f'event="calibration not used" file={tmp_path / "bad.json"} ' in said
    assert message in said


def test_a_folder_or_a_broken_link_by_that_name_is_no_file(tmp_path, caplog):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere")

    assert read_calibrations(tmp_path) == {}
    assert "folder.json" in caplog.text
    assert "link.json" in caplog.text


def test_without_the_folder_there_are_none(tmp_path, caplog):
    assert read_calibrations(tmp_path / "none") == {}
    assert "no such folder" in caplog.text


def test_of_two_about_one_engine_the_one_measured_last_counts(tmp_path, caplog):
    for name, at_s in (("a", 20.0), ("b", 30.0), ("c", 10.0)):
        file = a_file(measured_at_s=at_s, key=KEY.model_copy(update={"model": f"copy/{name}"}))
        (tmp_path / f"{name}.json").write_text(dump(file))

    [found] = read_calibrations(tmp_path).values()

    assert found.speed.learned_at_s == 30.0
    lines = [each.msg.fields for each in caplog.records if "message" in each.msg.fields]
    newer = f"{tmp_path / 'b.json'} is newer, for the same engine"
    assert [(each["file"], each["message"]) for each in lines] == [
        (str(tmp_path / "a.json"), newer),
        (str(tmp_path / "c.json"), newer),
    ]
