"""Pictures of pages: what is drawn is to scale, and no text stands on another."""

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from cli_builders import a_comparison, run
from fleet_builders import a_sizing
from thorough import one_in
from tonnage.cli.page.document import SERIES, look
from tonnage.cli.page.pictures import (
    batches_of,
    load_figure,
    memory_figure,
    strictest,
    throughput_figure,
)
from tonnage.cli.results.plan_summary import BatchRow
from tonnage.sizing.serving.replica import SteadyState
from tonnage.sizing.step_time.step import StepTime
from tonnage.sizing.workload import Slo, Target
from tonnage.units import GIB

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))
ALONE = [path for path in EXAMPLES if path.stem != "scale-target"]
"""Those that need no Deployment beside them."""
FEW = settings(max_examples=settings().max_examples // 4)
"""A picture takes a tenth of a second."""
SAMPLED = one_in(5, ALONE, name=lambda path: path.stem)


def drawn(draw, *arguments):
    with look():
        return draw(*arguments)


def shown(figure):
    """Return the texts of a picture that are drawn, with the boxes that they fill."""
    with look():
        canvas = FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        renderer = canvas.get_renderer()
        hidden = {
            label
            for axes in figure.axes
            for axis in (axes.xaxis, axes.yaxis)
            for tick in axis.get_major_ticks()
            if not within(axis, tick.get_loc())
            for label in (tick.label1, tick.label2)
        }
        return [
            (text.get_text(), text.get_window_extent(renderer))
            for text in figure.findobj(Text)
            if text.get_visible() and text.get_text() and text not in hidden
        ]


def within(axis, value):
    low, high = sorted(axis.get_view_interval())
    return low <= value <= high


def assert_reads_well(figure):
    """Assert that texts stand clear of one another, and within the picture."""
    found = shown(figure)
    frame = figure.bbox.padded(1)

    assert [
        (a, b)
        for (a, one), (b, other) in itertools.combinations(found, 2)
        if one.padded(-0.5).overlaps(other.padded(-0.5))
    ] == []
    assert [
        text for text, box in found if not (frame.contains(*box.min) and frame.contains(*box.max))
    ] == []


def texts(figure):
    return [text for text, _ in shown(figure)]


def a_state(num_decoding, *, step_s=0.01):
    step = StepTime(
        overhead_s=0.0,
        memory_s=step_s,
        compute_s=0.0,
        prefill_s=0.0,
        communication_s=0.0,
        dense_bytes=1.0,
        decode_flop=1.0,
    )
    return SteadyState(
        num_decoding=num_decoding,
        num_prefilling=0.0,
        prefill_tokens_per_step=0.0,
        step=step,
        requests_per_s=1.0,
    )


def a_row(num_decoding, *, is_load_line=False, step_s=0.01, tokens_per_s=100.0):
    return BatchRow(
        state=a_state(num_decoding, step_s=step_s),
        tokens_per_s=tokens_per_s,
        cells=("1", "10 ms", "100", "1%", "memory"),
        is_load_line=is_load_line,
        over=(),
        remark="",
    )


def a_class(name, times):
    """Return batches of 1, 2, 4, ... requests with these times per token; 2 is the load line."""
    rows = [
        a_row(2.0**k, is_load_line=k == 1, step_s=tpot_s, tokens_per_s=2.0**k / tpot_s)
        for k, tpot_s in enumerate(times)
    ]
    return name, rows, 1


def line_at(axes, label):
    (line,) = [each for each in axes.get_lines() if each.get_label().startswith(label)]
    return line


class TestThroughput:
    def test_a_target_is_a_line(self):
        slo = Slo(tpot=(Target(quantile=0.95, limit_s=0.05),))
        (axes,) = drawn(throughput_figure, [a_class("A", [0.01, 0.1])], slo).axes

        assert set(line_at(axes, "SLO: TPOT p95 50.0 ms").get_xdata()) == {0.05}

    def test_of_targets_with_one_limit_only_the_strictest_is_drawn(self):
        slo = Slo(
            tpot=(
                Target(quantile=0.5, limit_s=0.05),
                Target(quantile=0.99, limit_s=0.05),
                Target(quantile=0.5, limit_s=0.02),
            )
        )

        assert [str(each) for each in strictest(slo)] == ["p50 20.0 ms", "p99 50.0 ms"]

    def test_every_class_has_a_line_of_its_own_colour_and_marker(self):
        courses = [a_class(f"class {number}", [0.01, 0.1]) for number in range(len(SERIES))]
        (axes,) = drawn(throughput_figure, courses, Slo()).axes
        lines = [line_at(axes, name) for name, _, _ in courses]

        assert len({line.get_color() for line in lines}) == len(SERIES)
        assert len({line.get_marker() for line in lines}) == len(SERIES)

    @pytest.mark.parametrize("path", SAMPLED)
    def test_the_examples_read_well(self, path):
        result = a_comparison(path.read_text(), ("H100", "H200", "L40S", "A100-80GB", "B200", "L4"))
        classes = [batches_of(choice) for choice in result.selection.choices]

        assert_reads_well(drawn(throughput_figure, classes, result.request.slo))

    @FEW
    @given(
        st.lists(
            st.lists(
                st.floats(min_value=1e-3, max_value=5.0), min_size=2, max_size=9, unique=True
            ).map(sorted),
            min_size=1,
            max_size=6,
        ),
        st.lists(
            st.tuples(
                st.sampled_from([0.5, 0.9, 0.95, 0.99]), st.floats(min_value=2e-3, max_value=5.0)
            ),
            max_size=4,
            unique_by=lambda each: each[0],
        ),
    )
    def test_texts_never_overlap(self, courses, targets):
        slo = Slo(tpot=tuple(Target(quantile=q, limit_s=limit_s) for q, limit_s in targets))
        named = [a_class(f"RTX-PRO-6000-{n}", each) for n, each in enumerate(courses)]

        assert_reads_well(drawn(throughput_figure, named, slo))


class TestAPlan:
    RATE = 2.5

    @pytest.fixture
    def sizing(self):
        return a_sizing()

    def test_a_target_is_passed_where_the_replicas_sustain_no_more(self, sizing):
        (axes,) = drawn(load_figure, sizing, 3, self.RATE).axes
        most = sizing.sustained_requests_per_s(3)
        lines = [each for each in axes.get_lines() if each.get_label().endswith(", 3 replicas")]
        highest = {
            rate: max(line.get_ydata()[k] for line in lines)
            for k, rate in enumerate(lines[0].get_xdata())
        }

        assert {each.get_label().split()[0] for each in lines} == {"TTFT", "TPOT"}
        assert max(ratio for rate, ratio in highest.items() if rate < 0.99 * most) <= 1.0
        assert 1.0 < highest[max(highest)] < math.inf
        assert set(line_at(axes, "SLO").get_ydata()) == {1.0}
        assert set(line_at(axes, "demand: 2.50 requests/s").get_xdata()) == {self.RATE}

    def test_one_replica_more_serves_more(self, sizing):
        (axes,) = drawn(load_figure, sizing, 3, self.RATE).axes
        ends = [max(line_at(axes, f"TPOT p95 50.0 ms, {each}").get_xdata()) for each in "34"]

        assert ends[1] == pytest.approx(ends[0] * 4 / 3, rel=0.1)

    def test_the_parts_of_memory_fill_the_gpu(self, sizing):
        (axes,) = drawn(memory_figure, sizing).axes
        bars = axes.patches

        assert sum(each.get_width() for each in bars) * GIB == pytest.approx(
            sizing.budget.total_bytes
        )
        assert bars[-1].get_x() + bars[-1].get_width() == pytest.approx(axes.get_xlim()[1])

    def test_reads_well(self, sizing):
        assert_reads_well(drawn(load_figure, sizing, 3, self.RATE))
        assert_reads_well(drawn(memory_figure, sizing))

    def test_is_on_the_page_of_a_plan_with_a_demand(self, tmp_path):
        text = (ROOT / "deploy/examples/recommend.yaml").read_text()
        page, offline = tmp_path / "a.html", tmp_path / "b.html"
        run("plan", "-f", "-", "--html", page, text=text)
        slo = "  slo:\n    timeToFirstToken: {p95: 1s}\n    timePerOutputToken: {p95: 40ms}\n"
        assert slo in text
        run(
            "plan",
            "-f",
            "-",
            "--html",
            offline,
            text=text.replace(slo, "").replace("inTime", "all"),
        )

        assert [name in page.read_text() for name in ('id="load-0"', 'id="memory-0"')] == [True] * 2
        assert [name in offline.read_text() for name in ('id="load-0"', 'id="memory-0"')] == [
            False,
            True,
        ]
