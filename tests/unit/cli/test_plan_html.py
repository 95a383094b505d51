"""The pictures of a plan: the page, its geometry, and the ranges in the terminal."""

import io
import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli_builders import LLAMA, llama, plan, run
from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cli.answers.batches import BatchRow
from tonnage.cli.answers.gpu_memory import ranged
from tonnage.cli.answers.planning import Planned, Refused, Terms, answer
from tonnage.cli.answers.roofline import Ceiling, Point, Roofline, roofline
from tonnage.cli.page.markup import Markup, element
from tonnage.cli.page.plan_html import page
from tonnage.cli.page.plan_memory_svg import BAR, HEIGHT, WIDTH, memory_layout, tick_bytes
from tonnage.cli.page.plan_roofline_layout import HEIGHT as ROOFLINE_HEIGHT
from tonnage.cli.page.plan_roofline_layout import PLOT, roofline_layout
from tonnage.cli.page.plan_roofline_layout import WIDTH as ROOFLINE_WIDTH
from tonnage.cli.page.plan_svg import Box, Line, LogAxis, Place, apart
from tonnage.cli.text.figures import memory_bar
from tonnage.sizing.memory import BudgetPart, MemoryBudget
from tonnage.sizing.steady import SteadyState
from tonnage.sizing.step import StepTime
from tonnage.units import GIB, MIB

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))
ALONE = [path for path in EXAMPLES if path.stem != "scale-target"]
"""Those that need no Deployment beside them."""
TOO_LARGE = llama(
    ("name: llama-70b", "name: too-large"),
    ("weights: fp8", "weights: bfloat16"),
    ("H200\n    gpusPerReplica: 2", "H100\n    gpusPerReplica: 1"),
)
SCRIPT = "<script>alert(1)</script>"
VOID = {"meta", "br"}


def answered(text=LLAMA, **terms):
    found = answer(
        parse_model_deployment(yaml.safe_load(text)), Terms(gpus=built_in_gpus(), **terms)
    )
    assert isinstance(found, Planned)
    return found


def a_budget(*, spread_bytes=0.0):
    """Return 100 GiB: 30 weights, 10 activations, 50 cache, 10 unused."""
    return MemoryBudget(
        total_bytes=100 * GIB,
        utilization_fraction=0.9,
        parts=(
            BudgetPart(name="weights", num_bytes=30 * GIB),
            BudgetPart(name="activations", num_bytes=10 * GIB, spread_bytes=spread_bytes),
        ),
    )


def a_row(num_decoding, *, is_load_line=False):
    step = StepTime(
        overhead_s=0.0,
        memory_s=0.01,
        compute_s=0.0,
        prefill_s=0.0,
        communication_s=0.0,
        decode_bytes=1.0,
        decode_flop=1.0,
    )
    state = SteadyState(
        num_decoding=num_decoding,
        num_prefilling=0.0,
        prefill_tokens_per_step=0.0,
        step=step,
        requests_per_s=1.0,
    )
    return BatchRow(state=state, cells=(), is_load_line=is_load_line, over=(), remark="")


def a_roofline(*, intensities=(1.0, 10.0, 100.0), ceilings=(50.0, 60.0, 200.0), fraction=0.5):
    """Return 1000 TFLOP/s over 4 TB/s; the points reach this fraction of the roof."""
    roof = Roofline(
        peak_flop_per_s=1e15,
        memory_bytes_per_s=4e12,
        flop_per_token=1e11,
        points=(),
        ceilings=tuple(
            Ceiling(name=name, num_requests=each, intensity_flop_per_byte=each)
            for name, each in zip(
                ("load line", "SLO ceiling", "memory ceiling"), ceilings, strict=False
            )
        ),
    )
    points = tuple(
        Point(
            row=a_row(2.0**number, is_load_line=number == 1),
            intensity_flop_per_byte=each,
            flop_per_s=fraction * roof.roof_flop_per_s(each),
        )
        for number, each in enumerate(intensities)
    )
    return replace(roof, points=points)


def tree(text):
    assert text.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(text.partition("\n")[2])  # noqa: S314  (our own output)


def words(found):
    return " ".join(" ".join(found.itertext()).split())


class Tags(HTMLParser):
    """Counts what is open; every tag must be closed in its turn."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def overlapping(labels):
    pairs = itertools.combinations(labels, 2)
    return [(a.lines, b.lines) for a, b in pairs if a.box.overlaps(b.box)]


def test_a_page_is_well_formed_html_and_xml():
    result = plan(LLAMA, TOO_LARGE, options=["--html", "-"])
    tags = Tags()
    tags.feed(result.stdout)

    assert tags.open == []
    assert tree(result.stdout).tag == "html"
    assert tags.seen.count("svg") == 2
    assert tags.seen.count("section") == 2


def test_a_page_needs_nothing_beside_itself():
    text = plan(LLAMA, options=["--html", "-"]).stdout
    tags = Tags()
    tags.feed(text)
    links = [value for name, value in tags.attributes if name in {"href", "src", "xlink:href"}]

    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert [link for link in links if not link.startswith("#")] == []
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text


def test_every_picture_says_what_it_shows():
    found = tree(plan(LLAMA, llama(("name: llama-70b", "name: b")), options=["--html", "-"]).stdout)
    names = [each.get("id") for each in found.iter() if each.get("id")]

    assert len(names) == len(set(names))
    for svg in found.iter("svg"):
        title, desc = svg[0], svg[1]
        assert (title.tag, desc.tag, svg.get("role")) == ("title", "desc", "img")
        assert svg.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
        assert "GiB" in desc.text or "FLOP per byte" in desc.text


def test_the_answer_is_the_heading():
    heading = tree(plan(LLAMA, options=["--html", "-"]).stdout).find("body/section/h2")

    assert "serving/llama-70b: meta-llama/Llama-3.3-70B-Instruct on H200" in words(heading)
    assert re.search(r"[0-9]+ replicas of 2 GPUs \(TP2\) on H200, max-num-seqs", words(heading))


def test_a_page_tells_the_chain_the_batches_and_the_origin_of_each_input():
    found = answered()
    section = tree(page([found])).find("body/section")
    rows = [[words(cell) for cell in row] for row in section.iter("tr")]
    questions = [words(each) for each in section.iter("h4")]

    assert questions[0] == "1. Does it fit?"
    assert questions[5] == "6. What does it cost?"
    assert ["arrivals", "Poisson, through a Service", "guessed"] in rows
    assert ["contextLength", "8192 tokens", "given"] in rows
    assert [row[-1] for row in rows if "load line" in row[-1]] == ["load line (TPOT)"]
    assert ["limited by", "TimePerOutputToken"] in rows


def test_several_objects_are_listed_with_their_answers():
    result = plan(LLAMA, TOO_LARGE, options=["--html", "-"])
    entries = [words(each) for each in tree(result.stdout).find("body/ol")]

    assert result.exit_code == 2
    assert re.match(r"serving/llama-70b : [0-9]+ replicas", entries[0])
    assert entries[1].startswith("serving/too-large : No: it does not fit into the memory")


def test_a_refused_plan_says_why_with_the_arithmetic_and_the_ways_out():
    section = tree(plan(TOO_LARGE, options=["--html", "-"]).stdout).find("body/section")
    text = words(section)

    assert section.get("class") == "no"
    assert section.find("svg") is None
    assert "No: it does not fit into the memory (DoesNotFit)" in text
    assert "72.8 GiB usable (92% of 79.2 GiB) - 131.4 GiB weights - " in text
    assert "short before any KV cache; one request of 8192 tokens needs 2.5 GiB" in text
    assert "hardware.gpusPerReplica: 4" in text


def test_a_refusal_without_a_sentence_of_its_own_still_has_its_reason():
    section = tree(plan(llama(("gpu: H200", "gpu: H20O")), options=["--html", "-"]).stdout)

    assert "hardware.gpu 'H20O' is not in the catalogue" in words(section)


def test_too_few_replicas_are_said_in_the_heading():
    text = llama(("maxReplicas: 8", "maxReplicas: 1"), ("PerSecond: 4", "PerSecond: 40"))
    section = tree(plan(text, options=["--html", "-"]).stdout).find("body/section")

    assert section.get("class") == "short"
    assert "replicas are needed" in words(section.find("h2"))


def test_text_of_users_cannot_become_markup():
    found = answered()
    gpu = replace(found.sizing.question.gpu, name=SCRIPT)
    inputs = tuple(replace(each, value=SCRIPT) for each in found.sizing.question.inputs)
    question = replace(found.sizing.question, gpu=gpu, inputs=inputs)
    named = replace(found, sizing=replace(found.sizing, question=question))
    refused = Refused(
        deployment=replace(found.deployment, name=SCRIPT),
        code=SCRIPT,
        message=f"{SCRIPT}\x00\ud800",
    )
    text = page([named, refused])

    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 20
    assert text.encode()
    assert SCRIPT in words(tree(text))


def test_an_element_escapes_text_and_attributes_but_not_markup():
    inner = element("b", 'a<b & "c"')

    assert str(element("p", inner, Markup("<br/>"), title='"><i>')) == (
        '<p title="&quot;&gt;&lt;i&gt;"><b>a&lt;b &amp; &quot;c&quot;</b><br/></p>'
    )


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

    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stdout == ""


def test_nothing_valid_makes_no_page(tmp_path):
    path = tmp_path / "plan.html"
    result = plan(llama(("H200", "{}")), options=["--html", path])

    assert result.exit_code == 2
    assert not path.exists()


def test_the_parts_of_the_bar_are_to_scale():
    layout = memory_layout(a_budget())
    heights = {each.segment.name: each.box.bottom - each.box.top for each in layout.parts}

    # The bar is 300 pixels for 100 GiB.
    assert heights == pytest.approx(
        {"weights": 90, "activations": 30, "KV cache": 150, "unused": 30}
    )
    assert layout.parts[0].box.bottom == BAR.bottom
    assert layout.parts[-1].box.top == pytest.approx(BAR.top)


def test_the_range_of_the_edge_is_to_scale():
    edge = memory_layout(a_budget(spread_bytes=5 * GIB)).edge

    # 40 of 100 GiB are used: 120 of 300 pixels up from the bottom at 370, 15 more and less.
    assert (edge.start.y, edge.end.y) == pytest.approx((235, 265))
    assert memory_layout(a_budget()).edge is None
    assert memory_layout(a_budget(spread_bytes=0.1 * GIB)).edge is None


def test_the_labels_of_the_bar_carry_their_ranges():
    parts = memory_layout(a_budget(spread_bytes=2 * GIB)).parts

    assert [part.label.lines[0] for part in parts] == [
        "weights 30.0 GiB",
        "activations 10.0 GiB ± 2.0",
        "KV cache 50.0 GiB ± 2.0",
        "unused 10.0 GiB",
    ]


@given(
    st.lists(st.floats(min_value=1e-4, max_value=0.9), min_size=1, max_size=9),
    st.floats(min_value=0.5, max_value=1.0),
    st.floats(min_value=8, max_value=300),
)
def test_the_bar_is_filled_and_its_labels_do_not_overlap(shares, utilization, total_gib):
    total_bytes = total_gib * GIB
    scale = utilization * total_bytes / (sum(shares) + 0.1)
    parts = tuple(
        BudgetPart(name=f"part {number}", num_bytes=share * scale, spread_bytes=share * scale)
        for number, share in enumerate(shares)
    )
    budget = MemoryBudget(total_bytes=total_bytes, utilization_fraction=utilization, parts=parts)
    layout = memory_layout(budget)
    frame = Box(left=0, top=0, right=WIDTH, bottom=HEIGHT)
    heights = [part.box.bottom - part.box.top for part in layout.parts]
    labels = [*(part.label for part in layout.parts), layout.total, *layout.ticks]

    assert sum(heights) == pytest.approx(BAR.bottom - BAR.top)
    assert overlapping(labels) == []
    assert [label.lines for label in labels if not frame.holds(label.box)] == []


@pytest.mark.parametrize(
    ("total_gib", "ticks"),
    [(22.1, [0, 5, 10, 15, 20]), (79.2, [0, 20, 40, 60]), (139.8, [0, 50, 100])],
)
def test_ticks_are_round(total_gib, ticks):
    assert [each / GIB for each in tick_bytes(total_gib * GIB)] == ticks


def test_the_ridge_is_where_both_roofs_meet():
    found = a_roofline()
    layout = roofline_layout(found)
    start, ridge, end = layout.roof

    assert found.ridge_flop_per_byte == 250  # 1000 TFLOP/s over 4 TB/s
    assert ridge.x == pytest.approx(layout.intensity.at(250))
    assert ridge.y == end.y == pytest.approx(layout.work.at(1e15))
    assert start.y == pytest.approx(layout.work.at(4e12 * layout.intensity.low))


def test_a_decade_is_as_long_everywhere_on_an_axis():
    axis = LogAxis(low=0.1, high=1000.0, start=0.0, end=400.0)

    assert [axis.at(value) for value in (0.1, 1, 10, 100, 1000)] == pytest.approx(
        [0, 100, 200, 300, 400]
    )
    assert list(axis.decades()) == pytest.approx([0.1, 1, 10, 100, 1000])


def test_the_height_of_a_point_is_its_tokens_times_the_work_of_one():
    found = roofline(answered().sizing)

    # Llama 70B on each of 2 GPUs: 2 * (70.554e9 - 1.051e9 of the embedding table) / 2, and
    # 4 * 64 heads * 128 * 5000 tokens * 80 layers / 2 of attention.
    assert found.flop_per_token == pytest.approx(69.50e9 + 6.55e9, rel=1e-3)
    for point in found.points:
        tokens_per_s = float(point.row.cells[2])
        assert point.flop_per_s == pytest.approx(tokens_per_s * found.flop_per_token, rel=0.01)


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
@pytest.mark.parametrize("is_textbook", [False, True])
def test_every_example_lies_below_its_roof_and_reads_well(path, is_textbook):
    found = roofline(answered(path.read_text(), is_textbook=is_textbook).sizing)
    layout = roofline_layout(found)

    for point in found.points:
        assert point.flop_per_s <= found.roof_flop_per_s(point.intensity_flop_per_byte) * (1 + 1e-9)
    assert sum(point.row.is_load_line for point in found.points) == 1
    assert len(layout.names) == 3
    assert overlapping(layout.labels) == []


def test_the_page_of_all_examples():
    result = run("plan", "-f", ROOT / "deploy" / "examples", "--html", "-")

    assert result.exit_code == 0
    assert len(list(tree(result.stdout).iter("svg"))) == 2 * len(EXAMPLES)


def test_ceilings_stand_at_the_intensity_of_their_batch():
    found = roofline(answered().sizing)
    ceilings = {each.name: each for each in found.ceilings}
    load_line = next(point for point in found.points if point.row.is_load_line)
    layout = roofline_layout(found)

    assert set(ceilings) == {"load line", "SLO ceiling", "memory ceiling"}
    assert ceilings["load line"].intensity_flop_per_byte == load_line.intensity_flop_per_byte
    for mark in layout.marks:
        expected = layout.intensity.at(mark.ceiling.intensity_flop_per_byte)
        assert mark.line.start.x == mark.line.end.x == expected
        assert mark.line.end.y == PLOT.bottom


def test_offline_has_no_slo_ceiling():
    text = (ROOT / "deploy" / "examples" / "offline-batch.yaml").read_text()
    found = roofline(answered(text).sizing)

    assert [each.name for each in found.ceilings] == ["load line", "memory ceiling"]


intensities = st.lists(
    st.floats(min_value=0.1, max_value=5e3), min_size=1, max_size=12, unique=True
).map(sorted)


@given(
    intensities,
    st.lists(st.floats(min_value=0.1, max_value=5e3), min_size=1, max_size=3),
    st.floats(min_value=0.01, max_value=1.0),
)
def test_labels_of_a_roofline_never_overlap(intensities, ceilings, fraction):
    layout = roofline_layout(
        a_roofline(intensities=intensities, ceilings=ceilings, fraction=fraction)
    )
    frame = Box(left=0, top=0, right=ROOFLINE_WIDTH, bottom=ROOFLINE_HEIGHT)
    numbers = [dot.label for dot in layout.dots if dot.label]
    lines = [mark.line for mark in layout.marks]

    assert overlapping(layout.labels) == []
    assert [label.lines for label in layout.labels if not frame.holds(label.box)] == []
    assert [
        label.lines for label in numbers if any(line.crosses(label.box) for line in lines)
    ] == []
    for label, dot in itertools.product(layout.labels, layout.dots):
        assert not label.box.overlaps(dot.box)
    for dot in layout.dots:
        assert PLOT.left <= dot.place.x <= PLOT.right
        assert PLOT.top <= dot.place.y <= PLOT.bottom


def test_no_ceiling_runs_through_the_name_of_another():
    layout = roofline_layout(a_roofline(ceilings=(50.0, 52.0, 54.0)))

    for mark, other in itertools.permutations(layout.marks, 2):
        assert not mark.line.crosses(other.label.box)


@pytest.mark.parametrize(
    ("start", "end", "crosses"),
    [
        ((0, 5), (20, 5), True),
        ((0, 0), (20, 20), True),
        ((12, 0), (12, 20), True),
        ((0, 12), (9, 12), False),
        ((0, 25), (25, 16), False),
        ((15, 0), (15, 20), False),
    ],
)
def test_a_line_crosses_a_box_where_it_is_within_it(start, end, crosses):
    line = Line(start=Place(x=start[0], y=start[1]), end=Place(x=end[0], y=end[1]))

    assert line.crosses(Box(left=10, top=2, right=15, bottom=14)) is crosses


@given(
    st.lists(st.floats(min_value=-50, max_value=350), min_size=1, max_size=12).map(sorted),
)
def test_labels_are_pushed_apart_but_not_past_the_end(targets):
    found = apart(targets, gap=20, low=0, high=300)

    assert len(found) == len(targets)
    assert all(b - a >= 20 - 1e-9 for a, b in itertools.pairwise(found))
    assert found[0] >= -1e-9
    assert found[-1] <= 300 + 1e-9


def printed(budget, *, is_ascii=False, width=80):
    sizing = replace(answered().sizing, budget=budget)
    console = Console(width=width, file=io.StringIO())
    console.print(memory_bar(sizing, is_ascii=is_ascii))
    return console.file.getvalue().splitlines()


def test_the_terminal_shows_how_far_each_part_may_be_off():
    text = "\n".join(printed(a_budget(spread_bytes=2 * GIB)))

    assert "activations 10.0 GiB ± 2.0" in text
    assert "KV cache 50.0 GiB ± 2.0" in text
    assert re.search(r"weights 30.0 GiB( {2,}|$)", text, re.MULTILINE)


def test_a_line_under_the_bar_marks_where_the_cache_may_begin():
    bar, edge, *_ = printed(a_budget(spread_bytes=5 * GIB))

    # 60 cells for 100 GiB: the cache begins after 24 cells, 3 more or less.
    assert bar.startswith("█" * 18 + "▓" * 6 + "▚" * 30 + "·" * 6)
    assert edge.rstrip() == " " * 21 + "├────┤ KV cache begins, 9 times in 10"


def test_the_line_under_the_bar_stands_beside_what_it_marks():
    budget = replace(
        a_budget(),
        parts=(BudgetPart(name="weights", num_bytes=70 * GIB, spread_bytes=5 * GIB),),
    )
    _, edge, *_ = printed(budget)

    # 42 cells of weights, 3 more or less; there is no room for the words to the right.
    assert edge.rstrip() == "KV cache begins, 9 times in 10 ├────┤".rjust(45)


def test_a_range_within_one_cell_has_no_line():
    lines = printed(a_budget(spread_bytes=0.8 * GIB))  # 0.96 of a cell

    assert "begins" not in "\n".join(lines)


def test_ranges_in_ascii_are_ascii():
    lines = printed(a_budget(spread_bytes=5 * GIB), is_ascii=True)

    assert lines[1].rstrip() == " " * 21 + "|----| KV cache begins, 9 times in 10"
    assert "activations 10.0 GiB +- 5.0" in "\n".join(lines)
    assert all(line.isascii() for line in lines)


def test_a_legend_with_ranges_stays_within_80_columns():
    parts = ("weights", "activations", "runtime", "CUDA graphs")
    budget = MemoryBudget(
        total_bytes=139 * GIB,
        utilization_fraction=0.92,
        parts=tuple(
            BudgetPart(name=name, num_bytes=900 * MIB, spread_bytes=123.4 * MIB) for name in parts
        ),
    )
    lines = printed(budget, width=200)

    assert max(len(line.rstrip()) for line in lines) <= 77  # and an indentation of 3
    assert sum("MiB" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("num_bytes", "spread_bytes", "expected"),
    [
        (256 * MIB, 64 * MIB, "256.0 MiB ± 64.0"),
        (33.8 * GIB, 20 * MIB, "33.8 GiB ± 20.0 MiB"),
        (900 * MIB, 2 * GIB, "900.0 MiB ± 2.0 GiB"),
        (33.8 * GIB, 0.0, "33.8 GiB"),
    ],
)
def test_a_range_is_in_the_unit_of_its_amount(num_bytes, spread_bytes, expected):
    assert ranged(num_bytes, spread_bytes) == expected
