"""``tonnage catalog`` and ``tonnage crd``."""

import pytest
import yaml

from cli_builders import run
from tonnage.api.crd import crd
from tonnage.catalog.gpu import built_in_gpus
from tonnage.catalog.models import model_names


def rows(text):
    """Return the cells of a Markdown table, without its header."""
    return [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]


def test_every_class_stands_in_the_table_with_its_sources():
    table = rows(run("catalog", "gpus", "-o", "markdown").stdout)

    assert {row[0] for row in table} == set(built_in_gpus())
    assert all(row[-1] for row in table)


def test_the_figures_of_a_class_are_those_of_the_catalogue():
    [row] = [
        row for row in rows(run("catalog", "gpus", "-o", "markdown").stdout) if row[0] == "H100"
    ]

    # 79.2 GiB by the driver, 3.35 TB/s, 989 TFLOP/s dense: NVIDIA's page halves 1,979 with sparsity
    assert row[1:5] == ["79.2", "80", "3.35", "989"]


def test_every_model_stands_in_the_table_with_its_source():
    table = rows(run("catalog", "models", "-o", "markdown").stdout)

    assert {row[0] for row in table} == set(model_names())
    assert all(row[-1] for row in table)


def test_the_figures_of_a_model_are_those_of_its_card():
    table = rows(run("catalog", "models", "-o", "markdown", "--match", "llama-3.1-70b").stdout)
    [row] = [row for row in table if row[0] == "meta-llama/Llama-3.1-70B-Instruct"]

    # 70.6e9 parameters, 80 layers, 2 bytes each; 2 * 80 * 8 * 128 * 2 B = 320 KiB per token
    assert row[1:8] == ["70.6", "70.6", "80", "bf16", "141", "320", "131072"]


def test_experts_in_another_format_than_the_rest_are_named():
    table = rows(run("catalog", "models", "-o", "markdown", "--match", "v4-flash").stdout)
    formats = {row[0]: row[4] for row in table}

    assert formats["deepseek-ai/DeepSeek-V4-Flash"] == "fp8, experts mxfp4"


def test_sources_are_shown_when_asked_for():
    assert "aiconfigurator" not in run("catalog", "gpus").stdout
    assert "aiconfigurator" in run("catalog", "gpus", "--sources", COLUMNS="80").stdout


def test_a_name_that_no_model_has_is_an_error():
    result = run("catalog", "models", "--match", "no-such-model")

    assert result.exit_code == 3
    assert "no-such-model" in result.stderr


def test_crd_prints_the_definition():
    assert yaml.safe_load(run("crd").stdout) == crd()


@pytest.mark.parametrize("width", [60, 80, 120, None])
@pytest.mark.parametrize("asked", ["gpus", "models", "gpus --sources", "models --sources"])
def test_a_table_is_one_as_wide_as_the_screen_and_names_what_it_leaves_out(asked, width):
    columns = {} if width is None else {"COLUMNS": str(width)}
    lines = run("catalog", *asked.split(), **columns).stdout.splitlines()

    assert max(map(len, lines)) <= (width or 120)
    assert len([line for line in lines if line[0] == "\u2500"]) == 1
    assert "\u2026" not in "".join(lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_on_a_narrow_screen_no_figure_is_broken(width):
    lines = run("catalog", "gpus", COLUMNS=str(width)).stdout.splitlines()
    [shown] = [line.split() for line in lines if line.startswith("RTX-PRO-6000 ")]
    text = run("catalog", "gpus", "-o", "markdown").stdout
    [row] = [row for row in rows(text) if row[0] == "RTX-PRO-6000"]

    assert shown == row[: len(shown)]
    names = text.splitlines()[0].strip("| ").split(" | ")[len(shown) : -1]
    assert lines[-1] == f"not shown in {width} columns: {', '.join(names)}"


def test_a_long_name_goes_on_in_the_next_line_beside_its_figures():
    lines = run("catalog", "models", "--match", "llama-3.1-70b", COLUMNS="60").stdout.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("nvidia/Llama-3.1-70B"))

    assert lines[start].split()[1:3] == ["70.6", "70.6"]
    assert lines[start].split()[0] + lines[start + 1] == "nvidia/Llama-3.1-70B-Instruct-FP8"
