"""The page of GPU classes compared."""

import subprocess
import sys
from dataclasses import replace

import pytest

from cli_builders import LLAMA, a_comparison, assert_stands_alone, llama, run, tree, words
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cli.page.pictures import compare_page
from tonnage.sizing.compare import RefusedClass

GPUS = built_in_gpus()
FOUR = "H100,H200,L4,GH200"
SCRIPT = "<script>alert(1)</script>"
TOO_SLOW = llama(("p95: 50ms", "p95: 5ms"))
OFFLINE = llama(
    ("  slo:\n    timeToFirstToken: {p95: 2s}\n    timePerOutputToken: {p95: 50ms}\n", "")
)


@pytest.fixture(scope="module")
def root():
    """Return the page of four classes."""
    return tree(compare_page(a_comparison()))


def texts_of(root):
    return [words(each) for each in root.iter("text")]


def test_stands_alone():
    text = run("compare", "-f", "-", "--gpu", FOUR, "--html", "-", text=LLAMA).stdout

    assert_stands_alone(text)
    assert len(list(tree(text).iter("svg"))) == 1


def test_says_of_every_picture_what_it_shows(root):
    for svg in root.iter("svg"):
        assert svg.get("role") == "img"
        assert "H200" in svg.get("aria-label")


def test_has_the_answer_and_each_class_in_figures(root):
    result = a_comparison()
    text = words(root)

    assert "headroom: up to" in text
    # Once for wide screens, and once for narrow ones, of which one is seen.
    assert text.count("KV cache per GPU") == 2 * len(result.in_full)
    for name, width in (("wide", 120), ("narrow", 60)):
        [part] = [each for each in root.iter() if each.get("class") == name]
        tiles = ["".join(each.itertext()) for each in part.iter() if each.tag.endswith("dt")]
        texts = ["".join(each.itertext()) for each in part.iter() if each.tag.endswith("pre")]
        assert tiles.count("TTFT p95") == tiles.count("cost") == len(result.in_full)
        assert max(len(line) for text in texts for line in text.splitlines()) <= width


def test_draws_the_slo(root):
    assert "SLO: TPOT p95 50.0 ms" in texts_of(root)


def test_offline_has_no_target_and_draws_no_slo():
    root = tree(compare_page(a_comparison(OFFLINE)))

    assert not [text for text in texts_of(root) if text.startswith("SLO")]


TEN = ("H100", "H200", "H20", "B200", "B300", "A100-80GB", "L40S", "L4", "GH200", "RTX-PRO-6000")
"""As if the catalogue had no others: each class is a search of a second."""


def test_draws_the_cheapest_where_all_are_compared():
    text = llama(("gpu: H200", "gpu: H20"), ("    gpusPerReplica: 2\n", ""))
    root = tree(compare_page(a_comparison(text, TEN, are_named=False)))
    (first, *_) = root.iter("svg")
    names = {words(each) for each in first.iter("text")} & set(GPUS)

    assert len(names) == 6


def test_where_no_class_will_do_says_why():
    result = a_comparison(TOO_SLOW)
    root = tree(compare_page(result))

    assert result.selection.choices == ()
    assert "No: none of these classes can serve it" in words(root)
    assert words(root).count("timePerOutputToken: one request alone on") >= 4


def test_cannot_be_made_to_hold_markup_of_others():
    result = a_comparison()
    choices = tuple(
        replace(
            choice,
            sizing=replace(
                choice.sizing,
                request=replace(
                    choice.sizing.request, gpu=replace(choice.gpu, name=f"{SCRIPT}{number}")
                ),
            ),
        )
        for number, choice in enumerate(result.selection.choices)
    )
    refused = RefusedClass(
        gpu=replace(GPUS["L4"], name=SCRIPT), reason=SCRIPT, message=f"{SCRIPT}\x00"
    )
    text = compare_page(
        replace(
            result,
            deployment=replace(result.deployment, name=SCRIPT),
            selection=replace(result.selection, choices=choices, refused=(refused,)),
        )
    )

    assert_stands_alone(text)
    assert SCRIPT in words(tree(text))


def test_goes_to_a_file_beside_the_text(tmp_path):
    path = tmp_path / "compare.html"
    result = run("compare", "-f", "-", "--gpu", "H100", "--html", path, text=LLAMA)

    assert result.exit_code == 0
    assert "costs least" in result.stdout
    assert result.stderr == f"Wrote {path}\n"
    assert tree(path.read_text(encoding="utf-8")).tag == "html"


def test_without_its_extra_is_one_line_that_says_how_to_install_it():
    script = "import sys\nsys.modules['matplotlib'] = None\nfrom tonnage.cli import main\nmain()\n"
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", script, "compare", "-f", "-", "--html", "page.html"],
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
