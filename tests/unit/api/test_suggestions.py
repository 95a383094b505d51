"""What a manifest that is not valid is answered: every problem, and the field that is meant."""

import pytest

from tonnage.api.objects import (
    MAX_ERRORS_SHOWN,
    InvalidSpecError,
    _fields_of,
    parse_model_deployment,
)
from tonnage.api.spec import Spec

SPEC = {
    "model": {"id": "a/b"},
    "hardware": {"gpu": "H100"},
    "contextLength": 8192,
    "engine": {"version": "0.33"},
    "scaling": {"maxReplicas": 2},
}
FIELDS = [each for each in _fields_of(Spec.model_json_schema()) if len(each) <= 2]


def problems_of(spec):
    manifest = {"apiVersion": "tonnage.dev/v1alpha1", "kind": "ModelDeployment",
                "metadata": {"name": "a"}, "spec": spec}  # fmt: skip
    with pytest.raises(InvalidSpecError) as refusal:
        parse_model_deployment(manifest)
    return refusal.value


def with_field(place, value):
    *parents, name = place
    if not parents:
        return SPEC | {name: value}
    return SPEC | {parents[0]: SPEC.get(parents[0], {}) | {name: value}}


@pytest.mark.parametrize("place", FIELDS, ids=".".join)
def test_a_field_with_a_letter_too_many_is_suggested(place):
    wrong = (*place[:-1], place[-1] + "x")

    assert f"spec.{'.'.join(wrong)}: unknown field; did you mean spec.{'.'.join(place)}?" in (
        problems_of(with_field(wrong, 1)).problems
    )


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        (("engine", "routing"), "scaling.routing"),
        (("demand", "maxReplicas"), "scaling.maxReplicas"),
        (("gpu",), "hardware.gpu"),
    ],
)
def test_a_field_in_another_place_is_named_there(wrong, meant):
    found = problems_of(with_field(wrong, 1)).problems

    assert f"spec.{'.'.join(wrong)}: unknown field; did you mean spec.{meant}?" in found


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("engine", "maxNumSeqs"), "Tonnage computes it from the SLO"),
        (("maxModelLen",), "contextLength sets it"),
        (("slo", "ttft"), "slo.timeToFirstToken sets it"),
        (("slo", "TPOT"), "slo.timePerOutputToken sets it"),
        (("model", "quantization"), "model.weights sets it"),
        (("replicas",), "Tonnage computes it, from scaling.minReplicas to scaling.maxReplicas"),
        (("hardware", "tensorParallelSize"), "hardware.gpusPerReplica sets it"),
    ],
)
def test_a_flag_of_vllm_and_a_name_of_others_says_what_decides_about_it(wrong, said):
    found = problems_of(with_field(wrong, 1)).problems

    assert f"spec.{'.'.join(wrong)}: unknown field; {said}" in found


@pytest.mark.parametrize(
    "wrong", [("model", "adapters", "maxLoras"), ("slo", "timeToFirstToken", "ttft"),
              ("scaleTarget", "port"), ("pods", "disruptionBudget", "replicas")],
)  # fmt: skip
def test_no_hint_leads_back_to_where_it_is_written(wrong):
    value = 1
    for name in reversed(wrong[1:]):
        value = {name: value}
    [found] = [
        each for each in problems_of(SPEC | {wrong[0]: value}).problems if "unknown field" in each
    ]

    assert " sets it" not in found
    assert "computes it" not in found


def test_a_field_like_no_other_has_no_suggestion():
    assert "spec.zzz: unknown field" in problems_of(SPEC | {"zzz": 1}).problems


def test_every_problem_is_listed_and_a_line_has_the_first():
    found = problems_of(SPEC | {f"zzz{number}": 1 for number in range(MAX_ERRORS_SHOWN + 2)})

    assert len(found.problems) == MAX_ERRORS_SHOWN + 2
    assert str(found).endswith("; and 2 more")


@pytest.mark.parametrize("argument", ["--lora-modules=sql=/adapters/sql", "--lora-modules=a=b/c"])
def test_adapters_are_named_as_vllm_documents_it(argument):
    spec = SPEC | {"engine": {"version": "0.33", "args": [argument]}}
    manifest = {"apiVersion": "tonnage.dev/v1alpha1", "kind": "ModelDeployment",
                "metadata": {"name": "a"}, "spec": spec}  # fmt: skip

    assert parse_model_deployment(manifest).spec.engine.args == (argument,)


@pytest.mark.parametrize(
    ("written", "meant"), [("2sec", "2s"), ("50 millis", "50ms"), ("soon", "")]
)
def test_a_duration_with_a_longer_unit_has_a_suggestion(written, meant):
    spec = SPEC | {"slo": {"timeToFirstToken": {"p95": written}}}
    [problem] = problems_of(spec).problems

    assert ("did you mean" in problem) is bool(meant)
    assert not meant or f"at most 1h; did you mean {meant}? (read: '{written}')" in problem
