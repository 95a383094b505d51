"""The page of plans: what it says, that it stands alone, and that nobody's text becomes markup."""

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest
from rich.console import Console

from cli_builders import LLAMA, answered, assert_stands_alone, llama, plan, run, tree, words
from tonnage.cli.answers.planning import Refused
from tonnage.cli.page.plan import plan_page
from tonnage.cli.text.plan import answer_report
from tonnage.sizing.search import size

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))
TOO_LARGE = llama(
    ("name: llama-70b", "name: too-large"),
    ("weights: fp8", "weights: bfloat16"),
    ("H200\n    gpusPerReplica: 2", "H100\n    gpusPerReplica: 1"),
)
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def page():
    """Return the page of one plan."""
    return plan_page([answered()])


def size_again(sizing, flags):
    return size(replace(sizing.request, flags=flags))


def printed(part):
    console = Console(width=120, file=io.StringIO())
    console.print(part)
    return console.file.getvalue()


def test_a_page_stands_alone():
    result = plan(LLAMA, TOO_LARGE, options=["--html", "-"])

    assert_stands_alone(result.stdout)
    assert tree(result.stdout).tag == "html"
    assert len(list(tree(result.stdout).iter("section"))) == 2


def test_a_page_is_the_same_every_time(page):
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.fonttype": "path"}):
        assert plan_page([answered()]) == page


def test_every_picture_says_what_it_shows(page):
    pictures = list(tree(page).iter("svg"))

    assert len(pictures) == 1
    for svg in pictures:
        assert svg.get("role") == "img"
        assert "FLOP per byte" in svg.get("aria-label")


def test_the_text_of_pictures_is_text(page):
    texts = {words(each) for each in tree(page).iter("text")}

    assert [each for each in texts if each.startswith("load line: ")]
    assert "decode FLOP/s of one GPU" in texts


def test_a_page_has_what_the_terminal_shows(page):
    section = tree(page).find("body/section")
    text = words(section.find("pre"))

    assert text.startswith("serving/llama-70b: meta-llama/Llama-3.3-70B-Instruct on H200")
    assert "".join(text.split()) == "".join(printed(answer_report(answered(), width=120)).split())


def test_offline_has_no_slo_ceiling():
    text = (ROOT / "deploy" / "examples" / "offline-batch.yaml").read_text()
    found = tree(plan_page([answered(text)]))

    assert not [each for each in found.iter("text") if words(each).startswith("SLO ceiling")]


def test_a_refused_plan_says_why_with_the_arithmetic_and_the_ways_out():
    section = tree(plan(TOO_LARGE, options=["--html", "-"]).stdout).find("body/section")
    text = words(section)

    assert section.find(".//svg") is None
    assert "No (DoesNotFit): " in text
    assert "72.8 GiB usable (92% of 79.2 GiB) - 131.4 GiB weights - " in text
    assert "short before any KV cache; one request of 8192 tokens needs 2.5 GiB" in text
    assert "hardware.gpusPerReplica: 4" in text


def test_a_refusal_without_a_sentence_of_its_own_still_has_its_reason():
    section = tree(plan(llama(("gpu: H200", "gpu: H20O")), options=["--html", "-"]).stdout)

    assert "hardware.gpu 'H20O' is not in the catalogue" in words(section)


@pytest.mark.parametrize(
    "text", [SCRIPT, "{{ 7 * 7 }}", "$x_1$ \\frac", "模型 \U0001f680", "a\x00\u202eb"]
)
def test_text_of_users_stays_text(text):
    found = answered()
    gpu = replace(found.sizing.request.gpu, name=text)
    inputs = tuple(replace(each, value=text) for each in found.sizing.request.inputs)
    request = replace(found.sizing.request, gpu=gpu, inputs=inputs)
    named = replace(found, sizing=replace(found.sizing, request=request))
    refused = Refused(
        deployment=replace(found.deployment, name=text), code=text, message=f"{text}\x00\ud800"
    )
    page = plan_page([named, refused])
    shown = text.replace("\x00", "\ufffd").replace("\u202e", "\ufffd")

    assert_stands_alone(page)
    assert page.encode()
    assert words(tree(page)).count(shown) > 10


def test_a_page_goes_to_a_file_beside_the_text(tmp_path):
    path = tmp_path / "plan.html"
    result = plan(LLAMA, options=["--html", path])

    assert result.exit_code == 0
    assert "1. Does it fit?" in result.stdout
    assert result.stderr == f"Wrote {path}\n"
    assert tree(path.read_text(encoding="utf-8")).tag == "html"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--html", "/nowhere/plan.html"], "--html /nowhere/plan.html: No such file or directory"),
        (["--html", "-", "-o", "json"], "--html - and -o json both print to standard output"),
    ],
)
def test_a_page_that_cannot_be_written_is_said(options, expected):
    result = plan(LLAMA, options=options)

    assert result.exit_code == 3
    assert expected in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["plan", "compare"])
def test_a_page_without_its_extra_is_one_line_that_says_how_to_install_it(command):
    script = "import sys\nsys.modules['matplotlib'] = None\nfrom tonnage.cli import main\nmain()\n"
    arguments = [command, "-f", "-", "--html", "page.html"]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script, *arguments],
        input=LLAMA,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr == (
        "Error: --html needs matplotlib, which is not installed: pip install matplotlib\n"
    )


def test_nothing_valid_makes_no_page(tmp_path):
    path = tmp_path / "plan.html"
    result = plan(llama(("H200", "{}")), options=["--html", path])

    assert result.exit_code == 3
    assert not path.exists()


@pytest.mark.thorough
def test_the_page_of_all_examples():
    result = run("plan", "-f", ROOT / "deploy" / "examples", "--html", "-")

    assert result.exit_code == 0
    assert_stands_alone(result.stdout)
    assert len(list(tree(result.stdout).iter("figure"))) == 2 * len(EXAMPLES)
