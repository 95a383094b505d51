"""What of a shared prefix engines find again: whole blocks beside layers with a state."""

from dataclasses import replace

import pytest

from builders import a_sizing_request, a_workload
from tonnage.catalog.engine import find_engine
from tonnage.catalog.models import built_in_model
from tonnage.sizing.memory.prefix import with_whole_blocks
from tonnage.sizing.options import Speculation, switches_in
from tonnage.sizing.provenance import Figure
from tonnage.sizing.workload import Lengths

QWEN, GEMMA = "Qwen/Qwen3.6-27B", "google/gemma-3-12b-it"


def reused_of(shared, of, *, model=QWEN, version="0.32", arguments=(), **changes):
    """Return the tokens of a mean prompt that are reused, and what the plan says of it."""
    prompt = Lengths(mean_tokens=of)
    shape = built_in_model(model)
    request = a_sizing_request(
        shape=shape,
        weights=shape.weight_format,
        engine=find_engine(version),
        switches=switches_in(arguments),
        workload=a_workload(prompt=prompt, cached_fraction=shared / of),
    )
    found = with_whole_blocks(replace(request, **changes))
    said = [each.value for each in found.inputs if each.figure is Figure.PREFIX]
    return round(found.workload.cached_fraction * of), said


@pytest.mark.parametrize("version", ["0.20", "0.27", "0.28", "0.33"])
def test_369_shared_tokens_of_370_gain_nothing(version):
    # vllm-project/vllm issue 36010: 374 and 377 s for 2,000 prompts, with and without.
    reused, [said] = reused_of(369, 370, version=version)

    assert reused == 0
    assert said.startswith("0 of 369 shared tokens of a mean prompt are reused: ")


@pytest.mark.parametrize(
    ("shared", "reused"), [(783, 0), (784, 784), (1567, 784), (1568, 1568), (4000, 3920)]
)
def test_what_prompts_share_is_found_in_whole_blocks(shared, reused):
    # 784 tokens of 4096 bytes hold the 3.2 MB of a state: vLLM logs this block for Qwen3.6-27B.
    found, [said] = reused_of(shared, 8000)

    assert found == reused
    assert said.endswith("found in whole blocks of 784 tokens")


def test_blocks_are_multiples_of_64_since_0_33():
    assert reused_of(4000, 8000, version="0.33")[1][0].endswith("whole blocks of 832 tokens")


@pytest.mark.parametrize(
    ("version", "shared", "changes", "reused"),
    [
        ("0.32", 4000, {}, 3920 - 784),
        ("0.32", 700, {}, 0),
        ("0.33", 4000, {}, 3328),
        ("0.33", 3328, {}, 3328 - 832),  # the token behind the block is another
        ("0.33", 3329, {}, 3328),
        ("0.33", 4000, {"role": "prefill"}, 3328 - 832),
    ],
)
def test_draft_layers_cost_a_block_until_0_33_hashes_what_they_read(
    version, shared, changes, reused
):
    mtp = Speculation(method="mtp", num_draft_tokens=1, acceptance_rate=0.7)
    ngram = Speculation(method="ngram", num_draft_tokens=1, acceptance_rate=0.7)

    assert reused_of(shared, 8000, version=version, speculation=mtp, **changes)[0] == reused
    assert (
        reused_of(4000, 8000, version=version, speculation=ngram)[0]
        == reused_of(4000, 8000, version=version)[0]
    )


def test_states_are_cached_by_version_or_by_flag():
    on, off = ("--enable-prefix-caching",), ("--no-enable-prefix-caching",)

    assert reused_of(4000, 8000, version="0.25")[0] == 0
    assert reused_of(4000, 8000, version="0.25", arguments=on)[0] == 3920
    assert reused_of(4000, 8000, version="0.32", arguments=off)[0] == 0


def test_a_model_of_windows_finds_nearly_all():
    # The same test gains ten times there.
    assert reused_of(369, 370, model=GEMMA) == (369, [])


def test_decode_gets_its_cache_from_another_engine():
    assert reused_of(369, 370, role="decode") == (369, [])


def test_nothing_shared_is_nothing_to_say():
    assert reused_of(0, 370) == (0, [])
