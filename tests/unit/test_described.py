"""Models that describe their fields: texts in schemas, and nothing built before it is used."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from tonnage.described import DescribedModel


class Inner(DescribedModel):
    first_field: int
    """What is said
    of it."""
    second_field: int = 2


class Outer(DescribedModel):
    """Said of the class."""

    inner_model: Inner
    """Said where it is used."""
    other: Inner | None = None


def test_a_text_under_a_field_describes_it_in_the_schema():
    schema = Inner.model_json_schema()["properties"]

    assert schema["firstField"]["description"] == "What is said\nof it."
    assert "description" not in schema["secondField"]


def test_a_nested_model_is_described_by_its_own_texts_and_by_that_of_the_field():
    schema = Outer.model_json_schema()

    assert schema["description"] == "Said of the class."
    assert schema["properties"]["innerModel"]["description"] == "Said where it is used."
    assert "description" not in schema["properties"]["other"]
    first = schema["$defs"]["Inner"]["properties"]["firstField"]
    assert first["description"] == "What is said\nof it."


def test_a_validator_is_built_when_the_first_value_is_read():
    class Late(DescribedModel):
        count: int

    assert not Late.__pydantic_complete__
    assert Late.model_validate({"count": 3}).count == 3
    with pytest.raises(ValidationError):
        Late.model_validate({"count": 3, "more": 4})


def test_importing_plan_builds_no_model_of_a_manifest():
    script = (
        "import tonnage.cli.commands.plan\n"
        "from tonnage.api.objects import Spec\n"
        "from tonnage.api.status import PlanStatus\n"
        "from tonnage.catalog.config.keys.decoder import DecoderKeys\n"
        "print([each for each in (Spec, PlanStatus, DecoderKeys) if each.__pydantic_complete__])"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("[]\n", "")
