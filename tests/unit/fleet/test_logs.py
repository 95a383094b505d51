"""One line for each event, whatever is in it, in both forms."""

import ast
import io
import json
import logging
from pathlib import Path

import pytest

import tonnage
from tonnage.fleet.logs import JsonFormatter, Line, TextFormatter

DECISION = Line("decision", object="serving/llama", wanted=4, acts=True, message='"4" are\nneeded')


@pytest.fixture
def log():
    """A logger of its own, and what it wrote, by formatter."""
    written = io.StringIO()
    logger = logging.Logger("tonnage.test")
    handler = logging.StreamHandler(written)
    logger.addHandler(handler)

    def ask(formatter, say):
        handler.setFormatter(formatter)
        say(logger)
        return written.getvalue()

    return ask


def test_text_has_every_field_by_name_in_one_line(log):
    text = log(TextFormatter(), lambda logger: logger.info(DECISION))

    assert text.count("\n") == 1
    assert " level=INFO logger=tonnage.test event=decision object=serving/llama wanted=4" in text
    assert text.endswith('acts=true message="\\"4\\" are\\nneeded"\n')


def test_json_keeps_numbers_and_flags_as_they_are(log):
    text = log(JsonFormatter(), lambda logger: logger.info(DECISION))

    assert text.count("\n") == 1
    said = json.loads(text)
    assert (said["event"], said["wanted"], said["acts"]) == ("decision", 4, True)
    assert said["message"] == '"4" are\nneeded'
    assert (said["level"], said["logger"]) == ("INFO", "tonnage.test")


def test_json_has_the_fields_of_a_field_and_text_has_them_as_json(log):
    started = Line("started", settings={"tickS": 5.0, "namespaces": ["team-a"]})

    text = log(TextFormatter(), lambda logger: logger.info(started))
    said = json.loads(log(JsonFormatter(), lambda logger: logger.info(started))[len(text) :])

    assert said["settings"] == {"tickS": 5.0, "namespaces": ["team-a"]}
    assert text.endswith('settings="{\\"tickS\\": 5.0, \\"namespaces\\": [\\"team-a\\"]}"\n')


def test_what_is_known_by_name_is_a_field_of_every_line():
    """So that a log that is JSON can be asked for an object, and no line has key=value as text."""
    sources = Path(tonnage.__file__).parent.rglob("*.py")
    formats = {
        f"{path.name}:{call.lineno}"
        for path in sources
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "LOG"
        and call.args
        and isinstance(call.args[0], ast.Constant)
        and "=%" in call.args[0].value
    }

    assert formats == set()


def test_a_field_cannot_pass_for_the_level_or_the_time(log):
    text = log(JsonFormatter(), lambda logger: logger.info(Line("x", level="none", time="never")))

    assert json.loads(text)["level"] == "INFO"
    assert json.loads(text)["time"].endswith("+00:00")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_plain_message_stays_one_line(log, formatter):
    text = log(
        formatter, lambda logger: logger.warning("object=%s write failed: %s", "a/b", "x\ny")
    )

    assert text.count("\n") == 1
    assert "object=a/b write failed: x\\ny" in text


def test_json_has_the_traceback_in_its_line(log):
    def fail(logger):
        try:
            int("broken")
        except ValueError:
            logger.exception(Line("tick failed"))

    text = log(JsonFormatter(), fail)

    assert text.count("\n") == 1
    assert "ValueError: invalid literal" in json.loads(text)["traceback"]
