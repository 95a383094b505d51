"""What the plan says that an engine will print, to hold against its log."""

from builders import a_sizing_request
from tonnage.catalog.engine import known_engine
from tonnage.catalog.models import built_in_model
from tonnage.explain.report import logged_figures, logged_lines, sizing_reasons
from tonnage.explain.words import explain
from tonnage.sizing.search import size
from tonnage.sizing.workload import Slo


def gemma_under(version):
    return size(
        a_sizing_request(
            shape=built_in_model("google/gemma-3-12b-it"),
            engine=known_engine(version),
            slo=Slo(),
            context_tokens=32_768,
        )
    )


def test_old_versions_print_fewer_tokens_than_the_plan_counts_on():
    sizing = gemma_under("0.19")

    figures = logged_figures(sizing)

    # Blocks shared out to six groups; a request takes 2048 + 5 * (ceil(9215 / 16) + 1).
    assert figures.kv_tokens == figures.num_blocks // 6 * 16
    assert figures.max_concurrency == figures.num_blocks / (2048 + 5 * 577)
    assert figures.kv_tokens < sizing.kv_tokens / 2


def test_the_plan_and_its_reasons_name_the_version_and_what_it_will_print():
    sizing = gemma_under("0.19")
    (line,) = logged_lines(sizing)

    assert line.startswith(
        f"vLLM 0.19 will print {logged_figures(sizing).kv_tokens:,} tokens, maximum"
    )
    assert line in explain(sizing)[0].lines
    slots = next(reason for reason in sizing_reasons(sizing) if reason.code == "Slots")
    assert "vLLM 0.19 will print" in slots.message
