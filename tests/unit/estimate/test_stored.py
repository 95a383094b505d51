"""What was learned, as text: round trips, older and newer versions, and what is dropped."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_builders import a_posterior
from strategies import numbers
from tonnage.estimate.calibration import Calibrations, Scope
from tonnage.estimate.forecasters import WAYS
from tonnage.estimate.headroom import FIRST, NOTHING_HELD, KeptRecord, Score
from tonnage.estimate.posterior import (
    MemoryReport,
    ObjectPosterior,
    SpeedPosterior,
    Trial,
    Unmended,
)
from tonnage.estimate.stored import CorruptedStateError, NewerStateError, dump, load

RECORD = KeptRecord(
    record={"trend": Score(1.5, 30.0)},
    rises=(20.0, 0.0, 1.5, 0.0, 0.0, 4.0),
    held=((2.0, 3.0), (1.0, 5.0), (0.0, 8.0), (0.0, 9.5)),
)
TEN_YEARS_S = 315_360_000
UPPER = np.triu_indices(3)
digests = st.text("0123456789abcdef", min_size=20, max_size=20)
scopes = st.builds(Scope, st.sampled_from(["*", "blue", "green", "x" * 63]), digests)
times = st.integers(0, TEN_YEARS_S).map(float)
covariances = st.lists(numbers(-0.5, 0.5), min_size=9, max_size=9).map(
    lambda values: covariance_of(np.array(values).reshape(3, 3))
)
posteriors = st.builds(
    SpeedPosterior,
    overhead_factor=numbers(0.01, 50),
    bandwidth_efficiency=numbers(0.01, 1.2),
    prefill_efficiency=numbers(0.01, 1.2),
    covariance=covariances,
    num_windows=st.integers(0, 10**9),
    num_steps=numbers(0, 1e12),
    surprise=numbers(-50, 50),
    learned_at_s=times,
)
reports = st.builds(MemoryReport, kv_tokens=numbers(1, 1e9), reported_at_s=times)
replicas = st.tuples(numbers(0, 900), numbers(0, 900))
records = st.builds(
    KeptRecord,
    record=st.dictionaries(
        st.sampled_from(sorted(WAYS)), st.tuples(numbers(0, 900), numbers(1, 720)), max_size=5
    ),
    rises=st.tuples(*[numbers(0, 1500)] * 6),
    held=st.tuples(*[replicas] * 4),
)
names, shares = st.text(min_size=1, max_size=9), numbers(0, 1)
trials = st.builds(
    Trial,
    target=names,
    late_share=shares,
    replicas=st.integers(0, 10**6),
    requests_per_s_each=numbers(1e-6, 1e6),
    factor=numbers(0.05, 1.5),
)
objects = st.builds(
    ObjectPosterior,
    goodput_factor=numbers(0.05, 1.5),
    num_judged=numbers(0, 1e9),
    judged_at_s=times,
    burst_factor=st.none() | numbers(1, 3),
    cold_start_s=numbers(1, 7200),
    cold_start_deviation_s=numbers(0, 1000),
    node_wait_s=numbers(0, 900),
    num_starts=st.integers(0, 10**6),
    memory_key=digests | st.just(""),
    trial=st.none() | trials,
    unmended=st.lists(st.builds(Unmended, names, shares, shares), max_size=3).map(tuple),
    kept_load=numbers(0, 3),
    kv_tokens=st.none() | numbers(1, 1e9),
    slots_moved_at_s=st.none() | times,
    demand=st.none() | records,
)
states = st.builds(
    Calibrations,
    speed=st.dictionaries(scopes, posteriors, max_size=4),
    memory=st.dictionaries(scopes, reports, max_size=4),
    objects=st.dictionaries(st.uuids().map(str), objects, max_size=4),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


def covariance_of(factor):
    """A covariance that is no nearer to singular than a filter with noise makes them."""
    return tuple(map(float, (factor @ factor.T + 1e-6 * np.eye(3))[UPPER]))


def a_speed(**changes):
    entry = {
        "overhead_factor": 1.25,
        "bandwidth_efficiency": 0.7,
        "prefill_efficiency": 0.5,
        "covariance": [0.01, 0, 0, 0.0025, 0, 0.01],
        "num_windows": 10,
        "num_steps": 10_000,
        "surprise": -0.5,
        "learned_at_s": 5,
    }
    return entry | changes


def an_object(**changes):
    entry = {
        "goodput_factor": 0.9,
        "num_judged": 120,
        "judged_at_s": 5,
        "cold_start_deviation_s": 4,
        "num_starts": 2,
        "memory_key": "m",
        "cold_start_s": 90,
        "node_wait_s": 30,
        "kv_tokens": 70_000,
    }
    return entry | changes


def a_record(**changes):
    entry = {
        "record": {"trend": [1.5, 30]},
        "rises": [20, 0, 1.5, 0, 0, 4],
        "held": [[2, 3], [1, 5], [0, 8], [0, 9.5]],
    }
    return entry | changes


def a_state(**changes):
    state = {
        "version": 4,
        "speed": {"blue": {"k": a_speed()}},
        "memory": {"blue": {"m": {"kv_tokens": 70_000, "reported_at_s": 5}}},
        "objects": {},
    }
    return state | changes


def with_objects(**entries):
    return json.dumps(a_state(objects=entries))


def assert_close(found, expected):
    """Compare figure by figure: to 1e-5, and signs and what is exact exactly."""
    names = expected.__slots__
    for name in names:
        one, other = getattr(found, name), getattr(expected, name)
        if isinstance(other, Trial):
            assert_close(one, other)
        elif name == "unmended":
            for was, each in zip(one, other, strict=True):
                assert was.target == each.target
                assert was[1:] == pytest.approx(each[1:], rel=1e-5)
        elif isinstance(other, float | tuple):
            assert one == pytest.approx(other, rel=1e-5, abs=1e-12), name
        else:
            assert one == other, name


class TestRoundTrip:
    @given(states)
    def test_what_was_learned_is_read_as_it_was_written(self, known):
        loaded = load(dump(known))

        assert (loaded.num_dropped, loaded.num_widened) == (0, 0)
        for name in ("speed", "memory", "objects"):
            found, expected = getattr(loaded.calibrations, name), getattr(known, name)
            assert found.keys() == expected.keys()
            for scope in expected:
                assert_close(found[scope], expected[scope])

    @given(states)
    def test_once_more_it_is_the_same_text(self, known):
        once = load(dump(known)).calibrations

        assert load(dump(once)).calibrations == once

    @given(states)
    def test_the_same_state_is_the_same_text(self, known):
        turned = replace(
            known,
            speed=dict(reversed(known.speed.items())),
            memory=dict(reversed(known.memory.items())),
            objects=dict(reversed(known.objects.items())),
        )

        assert dump(turned) == dump(known)

    def test_it_is_written_so(self):
        scope = Scope("blue", "k")
        posterior = a_posterior(
            overhead_factor=1.25, bandwidth_efficiency=0.70000049, surprise=-0.5, learned_at_s=5.4
        )
        of_object = ObjectPosterior(
            goodput_factor=0.9,
            num_judged=120,
            judged_at_s=5,
            cold_start_s=90,
            cold_start_deviation_s=4,
            node_wait_s=30,
            num_starts=2,
            memory_key="m",
            kv_tokens=70_000,
            demand=RECORD,
        )
        known = Calibrations(
            speed={scope: posterior},
            memory={Scope("blue", "m"): MemoryReport(kv_tokens=70_000, reported_at_s=5)},
            objects={"u": of_object},
        )

        assert json.loads(dump(known)) == a_state(objects={"u": an_object(demand=a_record())})

    def test_what_an_object_has_not_shown_is_left_out(self):
        text = dump(Calibrations(objects={"u": ObjectPosterior()}))

        assert json.loads(text)["objects"] == {"u": {}}
        assert load(text).calibrations.objects == {"u": ObjectPosterior()}


class TestVersions:
    @pytest.mark.parametrize("version", [5, 10**30])
    def test_a_later_one_is_told_apart(self, version):
        with pytest.raises(NewerStateError, match=rf"version {version}, .* up to 4"):
            load(json.dumps({"version": version, "speed": "anything"}))

    @pytest.mark.parametrize("version", [0, 3])
    def test_an_older_one_is_not_read(self, version):
        with pytest.raises(CorruptedStateError, match=f"version {version} is no longer supported"):
            load(json.dumps({"version": version}))

    def test_what_is_not_read_any_more_costs_an_object_nothing(self):
        loaded = load(with_objects(u=an_object(host_cache={"asked": "k", "fraction": 0.3})))

        assert loaded.num_dropped == 0
        assert loaded.calibrations.objects["u"].kv_tokens == 70_000

    def test_a_record_from_before_rises_were_kept_reads_as_one_without_any(self):
        loaded = load(with_objects(u=an_object(demand={"record": {}})))
        known = loaded.calibrations.objects["u"].demand

        assert loaded.num_dropped == 0
        assert (known.rises, known.held) == (FIRST, NOTHING_HELD)

    @pytest.mark.parametrize("version", [0, 1, 2, -3, "3", None, [1], True, 3.0])
    def test_one_that_is_not_read_is_corrupted(self, version):
        with pytest.raises(CorruptedStateError):
            load(json.dumps(a_state(version=version)))

    @pytest.mark.parametrize("text", ["", "{", "null", "[]", '"text"', "[" * 100_000, "{}"])
    def test_what_is_no_state_at_all_is_corrupted(self, text):
        with pytest.raises(CorruptedStateError):
            load(text)

    @given(st.integers(1, 300))
    def test_a_truncated_one_is_corrupted(self, length):
        text = json.dumps(a_state())

        with pytest.raises(CorruptedStateError):
            load(text[: min(length, len(text) - 1)])


NO_FIGURES = [-1, "1", True, None, [], float("nan"), float("inf"), 10**400]


class TestWhatIsDropped:
    @pytest.mark.parametrize("value", NO_FIGURES)
    @pytest.mark.parametrize(
        "name",
        [
            "overhead_factor",
            "bandwidth_efficiency",
            "prefill_efficiency",
            "covariance",
            "num_windows",
            "num_steps",
            "learned_at_s",
        ],
    )
    def test_is_a_speed_with_a_figure_that_is_none(self, name, value):
        entries = {"bad": a_speed(**{name: value}), "good": a_speed()}

        loaded = load(json.dumps(a_state(speed={"blue": entries})))

        assert list(loaded.calibrations.speed) == [("blue", "good")]
        assert loaded.num_dropped == 1

    @pytest.mark.parametrize(
        "entry",
        [
            {},
            None,
            [0.7, 100, 5],
            a_speed(bandwidth_efficiency=0),
            a_speed(bandwidth_efficiency=1.6),
            a_speed(overhead_factor=101),
            a_speed(surprise="much"),
            a_speed(num_windows=2.5),
            a_speed(covariance=[0.01] * 5),
            a_speed(covariance=[0.01, 0, 0, 0.01, 0, float("nan")]),
        ],
    )
    def test_is_a_speed_that_cannot_be(self, entry):
        loaded = load(json.dumps(a_state(speed={"blue": {"bad": entry}})))

        assert loaded.calibrations.speed == {}
        assert loaded.num_dropped == 1

    @pytest.mark.parametrize("tokens", ["NaN", "Infinity", "-1", "0", "1e400", "1" + "0" * 400])
    def test_is_an_amount_of_tokens_that_is_none(self, tokens):
        loaded = load(json.dumps(a_state()).replace("70000", tokens))

        assert loaded.calibrations.memory == {}
        assert len(loaded.calibrations.speed) == 1

    @pytest.mark.parametrize("value", [v for v in NO_FIGURES if v is not None])
    @pytest.mark.parametrize(
        "name", ["goodput_factor", "num_judged", "kv_tokens", "slots_moved_at_s"]
    )
    def test_is_an_object_with_a_figure_that_is_none(self, name, value):
        loaded = load(with_objects(bad=an_object(**{name: value}), good=an_object()))

        assert list(loaded.calibrations.objects) == ["good"]
        assert loaded.num_dropped == 1

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("goodput_factor", 0.049),
            ("goodput_factor", 1.51),
            ("goodput_factor", 100),
            ("burst_factor", 0.99),
            ("burst_factor", 3.01),
        ],
    )
    def test_is_an_object_with_a_factor_that_no_learner_comes_to(self, name, value):
        loaded = load(with_objects(u=an_object(**{name: value})))

        assert (loaded.calibrations.objects, loaded.num_dropped) == ({}, 1)

    @pytest.mark.parametrize(
        "start",
        [
            {"cold_start_s": -360},
            {"cold_start_s": 0},
            {"cold_start_s": 11_040},
            {"cold_start_s": 1e15},
            {"cold_start_s": float("nan")},
            {"cold_start_s": "90"},
            {"cold_start_deviation_s": 7201},
            {"node_wait_s": 901},
            {"num_starts": -1},
        ],
    )
    def test_are_starts_that_no_learner_comes_to_and_nothing_else_of_the_object(self, start):
        loaded = load(with_objects(u=an_object(**start)))

        [known] = loaded.calibrations.objects.values()
        assert (known.cold_start_s, known.node_wait_s, known.num_starts) == (None, 0, 0)
        assert (known.goodput_factor, known.kv_tokens) == (0.9, 70_000)
        assert loaded.num_dropped == 1

    @pytest.mark.parametrize("key", [5, "k" * 65, None])
    def test_is_an_object_with_a_memory_key_that_is_none(self, key):
        assert load(with_objects(bad=an_object(memory_key=key))).num_dropped == 1

    @pytest.mark.parametrize("key", ["", "k" * 65])
    def test_is_a_key_that_we_do_not_make(self, key):
        loaded = load(json.dumps(a_state(speed={"blue": {key: a_speed()}})))

        assert (loaded.calibrations.speed, loaded.num_dropped) == ({}, 1)

    def test_is_a_whole_section_that_is_none(self):
        loaded = load(json.dumps(a_state(speed=[], memory={"blue": 5})))

        assert loaded.num_dropped == 2
        assert loaded.calibrations == Calibrations()

    @given(json_values, json_values, json_values)
    def test_is_garbage_of_any_form(self, speed, memory, objects):
        state = a_state(speed=speed, memory=memory, objects=objects)
        known = load(json.dumps(state)).calibrations

        assert all(0 < each.bandwidth_efficiency <= 1.5 for each in known.speed.values())
        assert all(each.kv_tokens > 0 for each in known.memory.values())
        assert all(0.2 <= each.goodput_factor <= 1.5 for each in known.objects.values())


def test_a_covariance_that_is_none_is_set_wide_and_the_constants_stay():
    entry = a_speed(covariance=[0.01, 0.5, 0, 0.25, 0, 0.01])

    loaded = load(json.dumps(a_state(speed={"blue": {"k": entry}})))

    [posterior] = loaded.calibrations.speed.values()
    assert posterior.covariance == pytest.approx((0.09, 0, 0, 0.25, 0, 0.09))
    assert posterior.overhead_factor == 1.25
    assert (loaded.num_dropped, loaded.num_widened) == (0, 1)


def a_trial(**changes):
    entry = {"target": "TTFT p95", "late_share": 0.1, "replicas": 2, "requests_per_s_each": 3.5}
    return entry | {"factor": 1} | changes


class TestATrial:
    def test_of_an_object_is_read_with_what_others_have_shown(self):
        shown = {"unmended": [["TPOT p95", 0.2, 0.1]], "kept_load": 0.8}
        loaded = load(with_objects(u=an_object(trial=a_trial(), **shown)))
        known = loaded.calibrations.objects["u"]

        assert loaded.num_dropped == 0
        assert known.trial == Trial(**a_trial())
        assert (known.unmended, known.kept_load) == ((Unmended("TPOT p95", 0.2, 0.1),), 0.8)

    @pytest.mark.parametrize(
        "part",
        [
            {"trial": 5},
            {"trial": {}},
            {"trial": a_trial(target="t" * 65)},
            {"trial": a_trial(late_share=1.1)},
            {"trial": a_trial(replicas=-1)},
            {"trial": a_trial(requests_per_s_each=0)},
            {"trial": a_trial(factor=1.6)},
            {"unmended": [["TPOT p95", 0.2]]},
            {"unmended": [["TPOT p95", 0.2, -0.1]]},
            {"unmended": [["TPOT p95", 0.2, 0.1]] * 17},
        ],
    )
    def test_that_cannot_be_goes_with_what_others_have_shown_and_nothing_else(self, part):
        shown = {"trial": a_trial(), "unmended": [["TPOT p95", 0.2, 0.1]]} | part
        loaded = load(with_objects(u=an_object(**shown)))

        assert (loaded.num_dropped, loaded.calibrations.objects["u"].trial) == (1, None)
        assert loaded.calibrations.objects == load(with_objects(u=an_object())).calibrations.objects


class TestARecordThatIsDropped:
    def dropped(self, entry):
        """Tell whether the record went, alone, and was counted."""
        loaded = load(with_objects(u=an_object(demand=entry)))
        known = loaded.calibrations.objects["u"]
        assert known.goodput_factor == 0.9
        return known.demand is None and loaded.num_dropped == 1

    def test_is_not_one_of_ours(self):
        assert not self.dropped(a_record())

    @pytest.mark.parametrize(
        "record",
        [
            None,
            [["trend", 1, 2]],
            {"trend": 1},
            {"trend": [1]},
            {"trend": "12"},
            {"trend": [1, 0]},
            {"trend": [-1, 30]},
            {"trend": [1, -30]},
            {"trend": [float("nan"), 30]},
            # More than twelve hours of notes weigh, and a loss of more than any fleet.
            {"trend": [1, 722]},
            {"trend": [10_001 * 722, 30]},
            {str(way): [1, 30] for way in range(6)},
        ],
    )
    def test_has_scores_that_cannot_be(self, record):
        assert self.dropped(a_record(record=record))

    @pytest.mark.parametrize(
        "changes",
        [
            {"rises": None},
            {"rises": [1, 0, 0, 0, 0]},
            {"rises": [-1, 0, 0, 0, 0, 0]},
            {"rises": [1585, 0, 0, 0, 0, 0]},  # more than a tenth above a day of minutes
            {"held": None},
            {"held": [[1, 2]] * 3},
            {"held": [[1, 2, 3]] * 4},
            {"held": [[1, -2]] * 4},
            {"held": [[float("nan"), 2]] * 4},
        ],
    )
    def test_has_rises_or_holding_that_cannot_be(self, changes):
        assert self.dropped(a_record(**changes))

    @given(json_values)
    def test_is_anything_else(self, entry):
        assert entry is None or self.dropped(entry)
