"""What was learned, as it is kept: round trips, what is dropped, and what shares a key."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    FP8,
    a_gpu,
    a_shape,
    a_sizing_request,
)
from strategies import numbers
from tonnage.catalog.engine import find_engine
from tonnage.estimate.calibration import (
    MAX_ENTRIES,
    Calibrations,
    MemoryCalibration,
    dump,
    is_material,
    load,
    memory_key,
    speed_key,
)
from tonnage.estimate.speed import SpeedCalibration
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage.units import MIB

TEN_YEARS_S = 315_360_000
keys = st.text("0123456789abcdef", min_size=20, max_size=20)
calibrations = st.builds(
    Calibrations,
    speed=st.dictionaries(
        keys,
        st.builds(
            SpeedCalibration,
            bandwidth_efficiency=numbers(0.01, 0.98).map(lambda value: round(value, 5)),
            busy_steps=st.integers(0, 10**12).map(float),
            changed_at_s=st.integers(0, TEN_YEARS_S).map(float),
        ),
        max_size=5,
    ),
    memory=st.dictionaries(
        keys,
        st.builds(
            MemoryCalibration,
            kv_tokens=numbers(1, 1e9),
            changed_at_s=st.integers(0, TEN_YEARS_S).map(float),
        ),
        max_size=5,
    ),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def a_state(**changes):
    state = {
        "version": 2,
        "speed": {"k": {"bandwidthEfficiency": 0.7, "busySteps": 100, "changedAt": 5}},
        "memory": {"m": {"kvTokens": 70_000, "changedAt": 5}},
    }
    return state | changes


def some_flags(**changes):
    flags = Flags(
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.92,
        parallelism=Parallelism(tensor=2),
    )
    return replace(flags, **changes)


class TestRoundTrip:
    @given(calibrations)
    def test_what_is_written_is_what_is_read(self, known):
        assert load(dump(known)) == known

    @given(calibrations)
    def test_the_same_state_is_the_same_text(self, known):
        turned = Calibrations(
            speed=dict(reversed(known.speed.items())), memory=dict(reversed(known.memory.items()))
        )

        assert dump(turned) == dump(known)

    def test_is_written_to_five_digits_and_whole_seconds(self):
        speed = SpeedCalibration(bandwidth_efficiency=0.1234567, busy_steps=100.4, changed_at_s=5.4)
        memory = MemoryCalibration(kv_tokens=70_000.5, changed_at_s=5.4)

        written = json.loads(dump(Calibrations(speed={"k": speed}, memory={"m": memory})))

        assert written == {
            "version": 2,
            "speed": {"k": {"bandwidthEfficiency": 0.12346, "busySteps": 100, "changedAt": 5}},
            "memory": {"m": {"kvTokens": 70_000.5, "changedAt": 5}},
        }

    def test_of_one_age_come_in_the_order_of_their_keys(self):
        entries = {key: MemoryCalibration(kv_tokens=1) for key in ("b", "a")}

        assert dump(Calibrations(memory=entries)).index('"a"') < dump(
            Calibrations(memory=entries)
        ).index('"b"')

    def test_what_was_never_written_is_the_oldest(self):
        assert SpeedCalibration(bandwidth_efficiency=0.7).changed_at_s == 0
        assert MemoryCalibration(kv_tokens=1).changed_at_s == 0

    def test_the_oldest_entries_go_first_when_there_are_too_many(self):
        entries = {
            f"{age:020}": MemoryCalibration(kv_tokens=1, changed_at_s=age)
            for age in range(MAX_ENTRIES + 10)
        }

        kept = load(dump(Calibrations(memory=entries))).memory

        assert sorted(kept) == [f"{age:020}" for age in range(10, MAX_ENTRIES + 10)]

    def test_a_full_state_fits_into_a_config_map_with_room_to_spare(self):
        speed = SpeedCalibration(
            bandwidth_efficiency=0.123456789, busy_steps=1e12, changed_at_s=1.8e9
        )
        memory = MemoryCalibration(kv_tokens=123456789.123456, changed_at_s=1.8e9)
        full = Calibrations(
            speed={f"{each:020}": speed for each in range(MAX_ENTRIES)},
            memory={f"{each:020}": memory for each in range(MAX_ENTRIES)},
        )

        assert len(dump(full)) < MIB / 4


class TestWhatIsRefused:
    @pytest.mark.parametrize("version", [0, 1, "2", None, [1]])
    def test_another_version_is_not_misread(self, version):
        with pytest.raises(ValueError, match="version 2"):
            load(json.dumps(a_state(version=version)))

    @pytest.mark.parametrize("text", ["", "{", "null", "[]", '"text"', "[" * 100_000])
    def test_what_is_no_state_at_all_is_a_value_error(self, text):
        with pytest.raises(ValueError, match=r".+"):
            load(text)

    @pytest.mark.parametrize(
        "entry",
        [
            {},
            None,
            [0.7, 100, 5],
            {"bandwidthEfficiency": 0.7, "busySteps": 100},
            {"bandwidthEfficiency": "0.7", "busySteps": 100, "changedAt": 5},
            {"bandwidthEfficiency": True, "busySteps": 100, "changedAt": 5},
            {"bandwidthEfficiency": 0.7, "busySteps": -1, "changedAt": 5},
            {"bandwidthEfficiency": 0.7, "busySteps": 10**400, "changedAt": 5},
            {"bandwidthEfficiency": 0.0, "busySteps": 100, "changedAt": 5},
            {"bandwidthEfficiency": 5.0, "busySteps": 100, "changedAt": 5},
        ],
    )
    def test_a_speed_that_is_none_is_dropped_and_the_others_stay(self, entry):
        good = a_state()["speed"]["k"]

        known = load(json.dumps(a_state(speed={"bad": entry, "good": good})))

        assert list(known.speed) == ["good"]

    @pytest.mark.parametrize("tokens", ["NaN", "Infinity", "-1", "0", "1e400", "1" + "0" * 400])
    def test_an_amount_of_tokens_that_is_none_is_dropped(self, tokens):
        text = json.dumps(a_state()).replace("70000", tokens)

        assert load(text).memory == {}
        assert list(load(text).speed) == ["k"]

    def test_figures_at_the_edge_of_what_can_be_are_kept(self):
        edge = {"bandwidthEfficiency": 0.98, "busySteps": 1e15, "changedAt": 0}

        known = load(
            json.dumps(a_state(speed={"k": edge}, memory={"m": {"kvTokens": 1, "changedAt": 0}}))
        )

        assert known.speed["k"].busy_steps == 1e15
        assert known.memory["m"].kv_tokens == 1

    @given(json_values, json_values)
    def test_garbage_in_the_sections_is_dropped(self, speed, memory):
        known = load(json.dumps(a_state(speed=speed, memory=memory)))

        assert all(0 < each.bandwidth_efficiency <= 1 for each in known.speed.values())
        assert all(each.kv_tokens > 0 for each in known.memory.values())


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
        ],
    )
    def test_memory_is_learned_apart_for_every_flag_that_shares_it(self, changes):
        request = a_sizing_request()

        assert memory_key(request, some_flags(**changes)) != memory_key(request, some_flags())

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
