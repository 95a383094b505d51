"""What the plan says that an engine will print, to hold against its log."""

from builders import a_sizing_request
from tonnage.catalog.engine import find_engine, known_engine, newest_version
from tonnage.catalog.models import built_in_model
from tonnage.explain.report import (
    assumptions_written,
    logged_figures,
    logged_lines,
    sizing_reasons,
)
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


def test_of_a_version_without_rules_nothing_is_said_to_be_printed_by_it():
    newer = size(a_sizing_request(engine=find_engine("0.34"), num_gpus=1))

    assert assumptions_written(newer.request)[0].startswith(
        f"vLLM 0.34: newer than {newest_version()}, the newest version whose rules are known; "
    )
    assert f"vLLM {newest_version()} will print" in "".join(logged_lines(newer))
    words = [each.message for each in sizing_reasons(newer) if each.code != "Assumed"]
    assert "0.34" not in "".join(words)


def test_of_a_known_version_nothing_is_assumed():
    known = a_sizing_request(engine=find_engine(newest_version()))

    assert assumptions_written(known) == ()
