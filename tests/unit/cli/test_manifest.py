"""From files to ModelDeployments: what counts, what is skipped, and where an error stands."""

import re

import pytest

from cli_builders import LLAMA, a_config_map, llama, plan, run
from tonnage.cli.console import ManifestError
from tonnage.cli.read.manifest import load, parse
from tonnage.units import MIB


def load_text(folder, text, name="a.yaml"):
    (folder / name).write_text(text)
    return load([str(folder)])


def test_other_kinds_are_set_aside(tmp_path):
    other = "apiVersion: v1\nkind: Namespace\nmetadata: {name: serving}\n"
    found = load_text(tmp_path, f"{other}---\n{LLAMA}---\n{a_config_map()}")

    assert [each.name for each in found.model_deployments] == ["llama-70b"]
    assert list(found.config_maps) == [("ConfigMap", "serving", "my-model")]
    assert [each.kind for each in found.others] == ["Namespace"]


def test_a_model_deployment_of_another_group_is_another_kind(tmp_path):
    found = load_text(tmp_path, llama(("tonnage.dev/", "other.example/")))

    assert found.model_deployments == ()
    assert [each.kind for each in found.others] == ["ModelDeployment"]


def test_a_list_is_opened(tmp_path):
    indented = LLAMA.replace("\n", "\n  ").rstrip()
    text = f"apiVersion: v1\nkind: List\nitems:\n- {indented}\n"
    [found] = load_text(tmp_path, text).model_deployments

    assert parse(found).name == "llama-70b"
    assert found.line_of("spec.contextLength") == 16


def test_an_object_that_stands_twice_is_refused(tmp_path):
    (tmp_path / "b.yaml").write_text(LLAMA)
    found = load_text(tmp_path, LLAMA)

    assert len(found.model_deployments) == 1
    [problem] = found.problems
    assert "b.yaml:1: ModelDeployment serving/llama-70b is given twice, first in" in problem


def test_a_broken_file_does_not_hide_the_others(tmp_path):
    (tmp_path / "b.yaml").write_text("a: [\n")
    found = load_text(tmp_path, LLAMA)

    assert len(found.model_deployments) == 1
    assert len(found.problems) == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"#" * (MIB + 1), "larger than 1 MiB"),
        (b"a: 1\n\xff\n", ":2: not UTF-8 text"),
        (LLAMA.encode("utf-16"), ":1: not UTF-8 text"),
        (b"- 1\n", ":1: not a Kubernetes object but '[1]'"),
        (b"hello\n", "not a Kubernetes object"),
    ],
)
def test_a_file_of_the_wrong_sort_is_said_to_be_one(tmp_path, content, expected):
    path = tmp_path / "a.yaml"
    path.write_bytes(content)
    [problem] = load([str(path)]).problems

    assert expected in problem


def test_an_endless_file_is_not_read_to_its_end():
    [problem] = load(["/dev/zero"]).problems

    assert problem == "/dev/zero: larger than 1 MiB"


def test_a_missing_file_is_named():
    [problem] = load(["/nowhere/a.yaml"]).problems

    assert problem == "/nowhere/a.yaml: No such file or directory"


BAD_FIELDS = [
    ("maxReplicas: 8", "maxReplicas: 012", "21: spec.scaling.maxReplicas: 012 is octal"),
    ("contextLength: 8192", "contextLength: 8_192", "13: spec.contextLength: 8_192 is a number"),
    ("contextLength: 8192", "contextLength: 12:30:45", "12:30:45 is a number to base 60"),
    ("contextLength: 8192", "contextLength: 8e3", "13: spec.contextLength: 8e3 is a number"),
    ("contextLength: 8192", "contextLength: 2026-01-01", "valid integer (read: '2026-01-01')"),
    ("contextLength: 8192", "contextLength: 8k", "valid integer; did you mean 8000? (read: '8k')"),
    ("contextLength: 8192", "contextLength: .nan", "13: spec.contextLength: .nan is no finite"),
    ("contextLength: 8192", "contextLength: NaN", "spec.contextLength: Input should be"),
    ("weights: fp8", "weights: on", "9: spec.model.weights: on is true or false to some"),
    ("p95: 2s", "p95: -5m", "15: spec.slo.timeToFirstToken.p95: "),
    ("p95: 2s", "p95: 0s", "15: spec.slo.timeToFirstToken.p95: "),
    (
        "p95: 2s",
        "p95: 2",
        "15: spec.slo.timeToFirstToken.p95: quote it, with a unit, such as 2s or",
    ),
    ("requestsPerSecond: 4", "requestsPerSecond: -0.5", "18: spec.demand.requestsPerSecond: "),
    ('"0.33"', "0.33", 'spec.engine.version: quote it, such as "0.33"'),
    ("maxReplicas: 8", "maxReplicas: 8, env: []", "spec.scaling.env: unknown field"),
    ("{maxReplicas: 8}", "{maxReplicas: 8, minReplicas: 9}", "minReplicas 9 must not exceed"),
    ("name: llama-70b", "name: ../../etc/passwd", "4: metadata.name: "),
    ("namespace: serving", "namespace: a/b", "5: metadata.namespace: 'a/b'"),
    ("v1alpha1", "v9", "1: apiVersion is 'tonnage.dev/v9', expected 'tonnage.dev/v1alpha1'"),
]


@pytest.mark.parametrize(("old", "new", "expected"), BAD_FIELDS)
def test_a_bad_field_is_named_with_its_line_and_value(old, new, expected):
    result = plan(llama((old, new)))

    assert result.exit_code == 3
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_an_escape_sequence_does_not_reach_the_terminal():
    result = plan(LLAMA + '  "\\e[31mred": 1\n')

    assert result.exit_code == 3
    assert "\x1b" not in result.stderr


def test_a_doubt_outside_the_spec_does_not_matter(tmp_path):
    [found] = load_text(tmp_path, LLAMA + "status: {replicas: {ready: 1e-05}}\n").model_deployments

    assert parse(found).name == "llama-70b"


def test_a_field_deep_in_a_union_finds_its_line(tmp_path):
    [found] = load_text(tmp_path, llama(("maxReplicas: 8", "maxReplicas: x"))).model_deployments

    with pytest.raises(ManifestError, match=r"a\.yaml:21: spec\.scaling\.maxReplicas"):
        parse(found)


def test_nothing_found_is_an_error():
    result = run("plan", "-f", "-", text="apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n")

    assert result.exit_code == 3
    assert "Note: standard input:1: skipped v1 Pod x" in result.stderr
    assert "no ModelDeployment of tonnage.dev in -" in result.stderr


def test_a_rate_with_decimals_is_read_and_said_to_need_quotes():
    result = plan(llama(("requestsPerSecond: 4", "requestsPerSecond: 0.2")))

    assert result.exit_code == 0
    assert '18: spec.demand.requestsPerSecond: quote it, "0.2"' in result.stderr
    assert "0.200 requests/s" in result.stdout


def test_each_problem_is_an_error_of_its_own_with_its_line():
    text = LLAMA.replace("contextLength:", "contextLengt:").replace(
        "  scaling: {", "  scaling: {x: 1, "
    )
    result = plan(text)
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]

    assert result.exit_code == 3
    assert all(re.match(r"Error: standard input:\d+: spec", line) for line in lines)
    assert [line.partition("spec")[2].partition(":")[0] for line in lines] == [
        ".contextLength", ".scaling.x", ".contextLengt",
    ]  # fmt: skip
