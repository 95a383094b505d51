"""What was learned, as a value: what shares a key, and what one namespace believes of another."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    FP8,
    a_gpu,
    a_layer_group,
    a_shape,
    a_sizing_request,
    an_expert_ffn,
)
from measured_builders import a_posterior
from strategies import numbers
from tonnage.catalog.engine import find_engine
from tonnage.estimate.calibration import (
    Beliefs,
    Calibrations,
    Scope,
    is_material,
    memory_key,
    speed_key,
)
from tonnage.estimate.posterior import MemoryReport
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism


def some_flags(**changes):
    flags = Flags(
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.92,
        parallelism=Parallelism(tensor=2),
    )
    return replace(flags, **changes)


def speeds(**by_namespace):
    """Calibrations with an entry for the key `k` in each namespace."""
    return Calibrations(speed={Scope(name, "k"): each for name, each in by_namespace.items()})


def pools(**by_namespace):
    return Calibrations(
        memory={
            Scope(name, "k"): MemoryReport(kv_tokens=tokens)
            for name, tokens in by_namespace.items()
        }
    )


def believed(namespace, known, *, min_namespaces=2):
    return Beliefs(calibrations=known, namespace=namespace, min_namespaces=min_namespaces)


def efficiency_in(namespace, known, **rules):
    posterior = believed(namespace, known, **rules).speed("k")
    return posterior and posterior.bandwidth_efficiency


def tokens_in(namespace, known):
    report = believed(namespace, known).memory("k")
    return report and report.kv_tokens


class TestUpdates:
    def test_leave_the_value_before_as_it_was(self):
        before = Calibrations()

        after = before.with_speed({Scope("a", "k"): a_posterior()}).with_memory(
            {Scope("a", "m"): MemoryReport(kv_tokens=1)}
        )

        assert before == Calibrations()
        assert after.speed == {("a", "k"): a_posterior()}
        assert after.memory == {("a", "m"): MemoryReport(kv_tokens=1)}


class TestSpeed:
    def test_of_its_own_engines_is_what_a_namespace_believes(self):
        known = speeds(
            own=a_posterior(bandwidth_efficiency=0.5, num_windows=1),
            b=a_posterior(bandwidth_efficiency=0.8),
            c=a_posterior(bandwidth_efficiency=0.8),
        )

        assert efficiency_in("own", known) == 0.5

    def test_of_an_entry_without_a_window_is_not_believed(self):
        known = speeds(own=a_posterior(bandwidth_efficiency=0.5, num_windows=0))

        assert efficiency_in("own", known) is None

    def test_of_one_other_namespace_is_not_believed(self):
        assert efficiency_in("own", speeds(b=a_posterior())) is None
        assert efficiency_in("own", speeds(b=a_posterior()), min_namespaces=1) == pytest.approx(0.7)

    def test_of_another_key_is_nothing(self):
        known = speeds(b=a_posterior(), c=a_posterior())

        assert believed("own", known).speed("other") is None

    def test_of_several_namespaces_is_their_geometric_middle(self):
        known = speeds(
            b=a_posterior(bandwidth_efficiency=0.4, overhead_factor=1.0),
            c=a_posterior(bandwidth_efficiency=0.9, overhead_factor=4.0),
        )

        found = believed("own", known).speed("k")

        assert found.bandwidth_efficiency == pytest.approx(0.6)
        assert found.overhead_factor == pytest.approx(2.0)
        assert found.prefill_efficiency == pytest.approx(0.5)

    def test_one_liar_among_three_does_not_move_it_beyond_the_honest_ones(self):
        lie = a_posterior(bandwidth_efficiency=0.05)
        known = speeds(
            b=a_posterior(bandwidth_efficiency=0.70),
            c=a_posterior(bandwidth_efficiency=0.72),
            liar=lie,
        )

        assert efficiency_in("own", known, min_namespaces=3) == pytest.approx(0.70)

    def test_of_namespaces_with_less_than_four_windows_is_no_witness(self):
        known = speeds(b=a_posterior(num_windows=3), c=a_posterior(num_windows=4))

        assert efficiency_in("own", known) is None

    def test_has_the_doubt_and_the_evidence_of_the_weakest_witness(self):
        known = speeds(
            b=a_posterior(covariance=(0.04, 0.001, 0, 0.01, 0, 0.02), num_windows=5, surprise=2),
            c=a_posterior(covariance=(0.01, 0, 0.002, 0.03, 0, 0.09), learned_at_s=2),
        )

        found = believed("own", known).speed("k")

        assert found.covariance == (0.04, 0, 0, 0.03, 0, 0.09)
        assert (found.num_windows, found.learned_at_s, found.surprise) == (5, 2, 0)

    @given(st.lists(numbers(0.05, 1.2), min_size=1, max_size=6))
    def test_is_within_what_the_witnesses_say(self, efficiencies):
        known = speeds(
            **{
                f"n{number}": a_posterior(bandwidth_efficiency=each)
                for number, each in enumerate(efficiencies)
            }
        )

        found = efficiency_in("own", known, min_namespaces=1)

        assert min(efficiencies) * 0.999 <= found <= max(efficiencies) * 1.001


class TestPool:
    def test_of_its_own_engines_is_what_a_namespace_believes(self):
        assert tokens_in("own", pools(own=100, b=50, c=50)) == 100

    def test_of_several_namespaces_is_the_smallest(self):
        assert tokens_in("own", pools(b=60, c=50)) == 50

    def test_of_one_other_namespace_is_not_believed(self):
        assert tokens_in("own", pools(b=16)) is None


class TestWitnesses:
    @pytest.mark.parametrize(
        ("windows", "expected"),
        [
            ({}, ("Prior", 0)),
            ({"own": 1, "b": 4, "c": 4}, ("Namespace", 2)),
            ({"own": 0, "b": 4, "c": 4}, ("OtherNamespaces", 2)),
            ({"own": 0, "b": 4, "c": 3}, ("Prior", 1)),
        ],
    )
    def test_are_those_whose_evidence_is_taken(self, windows, expected):
        known = speeds(**{name: a_posterior(num_windows=num) for name, num in windows.items()})

        assert believed("own", known).sources_of("k") == expected


def test_beliefs_are_those_of_one_namespace():
    known = replace(speeds(b=a_posterior()), memory=pools(b=50).memory)
    of_b = believed("b", known)
    of_c = replace(of_b, namespace="c")

    assert (of_b.speed("k"), of_b.memory("k").kv_tokens) == (a_posterior(), 50)
    assert (of_c.speed("k"), of_c.memory("k")) == (None, None)


class Entries(dict):
    """Counts how often all of them are looked at."""

    looks = 0

    def items(self):
        self.looks += 1
        return super().items()


def test_entries_of_a_large_fleet_are_looked_through_once_for_all_who_ask():
    names = [f"n{number}" for number in range(30)]
    reports = {Scope(name, "k"): MemoryReport(kv_tokens=9) for name in names}
    known = Calibrations(
        speed=Entries({Scope(name, "k"): a_posterior() for name in names}), memory=Entries(reports)
    )

    for name in [*names, "new", "newer"]:
        own = believed(name, known)
        assert (own.speed("k"), own.memory("k")) != (None, None)
        others = own.sources_of("k").num_others
        assert others == len(names) - (name in names)

    assert (known.speed.looks, known.memory.looks) == (1, 1)


class TestKeys:
    @pytest.mark.parametrize(
        "other",
        [
            a_sizing_request(shape=a_shape(digest="other")),
            a_sizing_request(weights=FP8),
            a_sizing_request(kv_format="fp8"),
            a_sizing_request(gpu=a_gpu(name="OTHER")),
            a_sizing_request(engine=find_engine("0.32")),
        ],
    )
    def test_speed_is_learned_apart_for_what_changes_it(self, other):
        assert speed_key(other, some_flags()) != speed_key(a_sizing_request(), some_flags())

    @pytest.mark.parametrize(
        "split",
        [
            Parallelism(),
            Parallelism(tensor=4),
            Parallelism(pipeline=2),
            Parallelism(tensor=2, data=2),
            Parallelism(tensor=2, context=2),
        ],
    )
    def test_speed_is_learned_apart_for_each_split(self, split):
        other = some_flags(parallelism=split)

        assert speed_key(a_sizing_request(), other) != speed_key(a_sizing_request(), some_flags())

    def test_speed_learned_beside_another_exchange_between_ranks_is_left_behind(self):
        flags = some_flags(parallelism=Parallelism(data=8))
        experts = a_shape(digest="experts", groups=(a_layer_group(ffn=an_expert_ffn()),))
        dense = a_sizing_request(shape=a_shape(digest="dense"))

        assert speed_key(dense, flags) == "f4985117661043d2ef72"  # as it was
        assert speed_key(a_sizing_request(shape=experts), flags) != "e92798bee5243cb0841f"

    def test_speed_of_experts_is_learned_apart_for_a_format_of_their_own(self):
        weights = a_sizing_request().weights.with_parts({"experts": FP8})
        experts = a_shape(digest="experts", groups=(a_layer_group(ffn=an_expert_ffn()),))

        def key(**changes):
            return speed_key(a_sizing_request(**changes), some_flags())

        assert key(shape=experts, weights=weights) != key(shape=experts)
        assert key(weights=weights) == key()  # no experts

    def test_speed_is_shared_over_batch_sizes_and_traffic(self):
        other = a_sizing_request(context_tokens=4096)

        assert speed_key(other, some_flags(max_num_seqs=8)) == speed_key(
            a_sizing_request(), some_flags()
        )

    @pytest.mark.parametrize(
        "changes",
        [
            {"max_num_seqs": 65},
            {"max_num_batched_tokens": 4096},
            {"gpu_memory_utilization": 0.9},
            {"parallelism": Parallelism()},
            {"kv_cache_bytes": 10_737_418_240},
            {"num_gpu_blocks": 5120},
        ],
    )
    def test_memory_is_learned_apart_for_every_flag_that_shares_it(self, changes):
        request = a_sizing_request()

        assert memory_key(request, some_flags(**changes)) != memory_key(request, some_flags())

    def test_bytes_are_not_taken_for_blocks(self):
        request = a_sizing_request()
        in_bytes, in_blocks = some_flags(kv_cache_bytes=5120), some_flags(num_gpu_blocks=5120)

        assert memory_key(request, in_bytes) != memory_key(request, in_blocks)
        assert speed_key(request, in_bytes) == speed_key(request, in_blocks)

    def test_stay_the_same_from_version_to_version_of_the_operator(self):
        # Constants learned by the first versions are found by these.
        request, flags = a_sizing_request(engine=find_engine("0.19")), some_flags()

        assert speed_key(request, flags) == "361a4d2f84730fb21388"
        assert memory_key(request, flags) == "6fd264df06cb818ee10b"

    def test_memory_is_learned_apart_for_each_maximum_length(self):
        other = a_sizing_request(context_tokens=4096)

        assert memory_key(other, some_flags()) != memory_key(a_sizing_request(), some_flags())


@pytest.mark.parametrize(
    ("before", "after", "material"),
    [
        (None, 0.8, True),
        (0.8, 0.8, False),
        (0.8, 0.815, False),
        (0.8, 0.817, True),
        (100, 97, True),
        (100, 102, False),
    ],
)
def test_a_constant_is_written_when_it_moved_by_more_than_two_percent(before, after, material):
    assert is_material(before, after) is material
