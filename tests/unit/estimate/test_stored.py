"""What was learned, as text: round trips, older and newer versions, and what is dropped."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from measured_builders import a_posterior
from strategies import numbers
from tonnage.estimate.budget import Ledger
from tonnage.estimate.calibration import EVERYONE, Calibrations, Scope
from tonnage.estimate.checked import CorruptedStateError, NewerStateError
from tonnage.estimate.forecast import Score
from tonnage.estimate.headroom import FIRST
from tonnage.estimate.holding import NOTHING_HELD
from tonnage.estimate.kept_history import BinRow, KeptHistory, figures, row
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior, SpeedPosterior
from tonnage.estimate.stored import (
    dump_objects,
    dump_shared,
    load_objects,
    load_shared,
)
from tonnage.estimate.ways import WAYS

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
bins = st.dictionaries(st.integers(2_900_000, 2_900_140), numbers(0, 9000), max_size=5).map(row)
histories = st.builds(
    KeptHistory,
    kept_at_s=times,
    unit=digests,
    unit_requests_per_s=st.just(2.5),
    means=bins,
    peaks=bins,
    planned=st.just(BinRow()),
    heights=st.just(BinRow()),
    scores=st.dictionaries(
        st.sampled_from(sorted(WAYS)), st.just(Score(loss=1.5, weight=30)), max_size=4
    ),
).map(lambda each: replace(each, planned=each.peaks, heights=each.peaks))
judged = st.tuples(st.integers(1, 999_999), st.integers(0, 99)).map(
    lambda each: (float(each[0]), each[0] * each[1] // 100 * 1.0)
)
ledgers = st.builds(
    Ledger,
    window_s=st.sampled_from([3600.0, 86_400.0, 604_800.0]),
    limits=st.dictionaries(
        st.sampled_from(["TTFT 2.00 s", "TPOT 50.0 ms"]),
        st.dictionaries(st.integers(490_000, 490_023), judged, min_size=1),
        max_size=2,
    ),
)
fractions = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)
objects = st.builds(
    ObjectPosterior,
    goodput_factor=numbers(0.2, 1.5),
    num_judged=numbers(0, 1e9),
    judged_at_s=times,
    burst_factor=st.none() | numbers(1, 3),
    cold_start_s=numbers(1, 7200),
    cold_start_deviation_s=numbers(0, 1000),
    node_wait_s=numbers(0, 900),
    num_starts=st.integers(0, 10**6),
    memory_key=digests | st.just(""),
    kv_tokens=st.none() | numbers(1, 1e9),
    slots_moved_at_s=st.none() | times,
    demand=st.none() | histories,
    ledger=st.none() | ledgers,
)
shared = st.builds(
    Calibrations,
    speed=st.dictionaries(scopes, posteriors, max_size=4),
    memory=st.dictionaries(scopes, reports, max_size=4),
    inherited=st.dictionaries(digests, numbers(0.01, 1), max_size=4),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
VERSION_2 = """
{"memory": {"6fd264df06cb818ee10b": {"changedAt": 1760000100, "kvTokens": 512345.5}},
 "speed": {"361a4d2f84730fb21388":
             {"bandwidthEfficiency": 0.61234, "busySteps": 120000, "changedAt": 1760000000}},
 "version": 2}
"""
"""As the operator wrote it before constants were kept apart by namespace."""


def covariance_of(factor):
    """A covariance that is no nearer to singular than a filter with noise makes them."""
    return tuple(map(float, (factor @ factor.T + 1e-6 * np.eye(3))[UPPER]))


def a_speed(**changes):
    entry = {
        "overheadFactor": 1.25,
        "bandwidthEfficiency": 0.7,
        "prefillEfficiency": 0.5,
        "covariance": [0.01, 0, 0, 0.0025, 0, 0.01],
        "numWindows": 10,
        "numSteps": 10_000,
        "surprise": -0.5,
        "misfit": 0.0,
        "regimeAt": 0,
        "learnedAt": 5,
    }
    return entry | changes


def an_object(**changes):
    entry = {
        "goodputFactor": 0.9,
        "numJudged": 120,
        "judgedAt": 5,
        "coldStartDeviationSeconds": 4,
        "numStarts": 2,
        "memoryKey": "m",
        "coldStartSeconds": 90,
        "nodeWaitSeconds": 30,
        "kvTokens": 70_000,
    }
    return entry | changes


def a_history(**changes):
    entry = {
        "version": 1,
        "keptAt": 5,
        "unit": "k",
        "unitRequestsPerSecond": 2.5,
        "means": {"first": 7, "text": "ABAAgB"},
        "peaks": {"first": 8, "text": "AB"},
        "planned": {"first": 8, "text": "gB"},
        "heights": {"first": 8, "text": "iB"},
        "record": {"trend": [1.5, 30]},
        "rises": [20, 0, 1.5, 0, 0, 4],
        "held": [[2, 3], [1, 5], [0, 8], [0, 9.5]],
    }
    return entry | changes


def a_shard(**changes):
    """A shard with one object, whose history is as told."""
    return json.dumps({"version": 3, "objects": {"u": an_object(demand=a_history(**changes))}})


def a_state(**changes):
    state = {
        "version": 3,
        "inherited": {"k": 0.6},
        "speed": {"blue": {"k": a_speed()}},
        "memory": {"blue": {"m": {"kvTokens": 70_000, "reportedAt": 5}}},
    }
    return state | changes


def assert_close(found, expected):
    """Compare figure by figure: to 1e-5, and signs and what is exact exactly."""
    names = expected.__slots__
    for name in names:
        one, other = getattr(found, name), getattr(expected, name)
        if isinstance(other, float | tuple):
            assert one == pytest.approx(other, rel=1e-5, abs=1e-12), name
        else:
            assert one == other, name


class TestRoundTrip:
    @given(shared)
    def test_what_namespaces_share_is_read_as_it_was_written(self, known):
        loaded = load_shared(dump_shared(known))

        assert (loaded.num_dropped, loaded.num_widened) == (0, 0)
        for name in ("speed", "memory"):
            found, expected = getattr(loaded.calibrations, name), getattr(known, name)
            assert found.keys() == expected.keys()
            for scope in expected:
                assert_close(found[scope], expected[scope])
        assert loaded.calibrations.inherited == pytest.approx(known.inherited, rel=1e-5)

    @given(st.dictionaries(st.uuids().map(str), objects, max_size=4))
    def test_what_belongs_to_objects_is_read_as_it_was_written(self, known):
        loaded = load_objects(dump_objects(known))

        assert loaded.num_dropped == 0
        assert loaded.calibrations.objects.keys() == known.keys()
        for uid in known:
            assert_close(loaded.calibrations.objects[uid], known[uid])

    @given(shared)
    def test_once_more_it_is_the_same_text(self, known):
        once = load_shared(dump_shared(known)).calibrations

        assert load_shared(dump_shared(once)).calibrations == once

    @given(shared)
    def test_the_same_state_is_the_same_text(self, known):
        turned = replace(
            known,
            speed=dict(reversed(known.speed.items())),
            memory=dict(reversed(known.memory.items())),
        )

        assert dump_shared(turned) == dump_shared(known)

    def test_the_shared_document_is_written_so(self):
        scope = Scope("blue", "k")
        posterior = a_posterior(
            overhead_factor=1.25, bandwidth_efficiency=0.70000049, surprise=-0.5, learned_at_s=5.4
        )
        known = Calibrations(
            speed={scope: posterior},
            memory={Scope("blue", "m"): MemoryReport(kv_tokens=70_000, reported_at_s=5)},
            inherited={"k": 0.6},
        )

        assert json.loads(dump_shared(known)) == a_state()

    def test_a_shard_is_written_so(self):
        posterior = ObjectPosterior(
            goodput_factor=0.9,
            num_judged=120,
            judged_at_s=5,
            cold_start_s=90,
            cold_start_deviation_s=4,
            node_wait_s=30,
            num_starts=2,
            memory_key="m",
            kv_tokens=70_000,
        )

        written = json.loads(dump_objects({"u": posterior}))

        assert written == {"version": 3, "objects": {"u": an_object()}}

    def test_a_history_is_written_so(self):
        known = KeptHistory(
            kept_at_s=5.4,
            unit="k",
            unit_requests_per_s=2.5,
            means=BinRow(first=7, text="ABAAgB"),
            peaks=BinRow(first=8, text="AB"),
            planned=BinRow(first=8, text="gB"),
            heights=BinRow(first=8, text="iB"),
            scores={"trend": Score(loss=1.5, weight=30)},
            rises=(20.0, 0.0, 1.5, 0.0, 0.0, 4.0),
            held=((2.0, 3.0), (1.0, 5.0), (0.0, 8.0), (0.0, 9.5)),
        )

        written = json.loads(dump_objects({"u": ObjectPosterior(demand=known)}))

        assert written["objects"]["u"]["demand"] == a_history()

    def test_what_an_object_has_not_shown_is_left_out(self):
        text = dump_objects({"u": ObjectPosterior()})

        assert "coldStartSeconds" not in text
        assert "kvTokens" not in text
        assert load_objects(text).calibrations.objects == {"u": ObjectPosterior()}


class TestVersions:
    def test_of_version_2_efficiencies_are_inherited_and_pools_believed_by_everyone(self):
        loaded = load_shared(VERSION_2)

        assert loaded.num_dropped == 0
        assert loaded.calibrations == Calibrations(
            inherited={"361a4d2f84730fb21388": 0.61234},
            memory={
                Scope(EVERYONE, "6fd264df06cb818ee10b"): MemoryReport(
                    kv_tokens=512_345.5, reported_at_s=1_760_000_100
                )
            },
        )

    def test_version_2_is_the_same_after_it_was_written_anew(self):
        migrated = load_shared(VERSION_2).calibrations

        again = load_shared(dump_shared(migrated)).calibrations

        assert again.inherited == migrated.inherited
        [(scope, report)] = again.memory.items()
        assert scope.namespace == EVERYONE
        assert report.kv_tokens == pytest.approx(512_345.5, rel=1e-5)

    @pytest.mark.parametrize("tokens", [0, -1, "many", True, None])
    def test_of_version_2_what_is_none_is_dropped_alone(self, tokens):
        state = json.loads(VERSION_2)
        state["memory"]["bad"] = {"changedAt": 5, "kvTokens": tokens}
        state["speed"]["bad"] = {"bandwidthEfficiency": tokens, "changedAt": 5}

        loaded = load_shared(json.dumps(state))

        assert loaded.num_dropped == 2
        assert (len(loaded.calibrations.inherited), len(loaded.calibrations.memory)) == (1, 1)

    @pytest.mark.parametrize("load", [load_shared, load_objects])
    @pytest.mark.parametrize("version", [4, 10**30])
    def test_a_later_one_is_told_apart(self, load, version):
        with pytest.raises(NewerStateError, match=rf"version {version}, .* up to 3"):
            load(json.dumps({"version": version, "speed": "anything"}))

    def test_an_object_without_a_history_reads_as_before(self):
        loaded = load_objects(json.dumps({"version": 3, "objects": {"u": an_object()}}))

        assert loaded.num_dropped == 0
        assert loaded.calibrations.objects["u"].demand is None

    def test_what_is_not_read_any_more_costs_an_object_nothing(self):
        older = an_object(hostCache={"asked": "k", "fraction": 0.3})
        loaded = load_objects(json.dumps({"version": 3, "objects": {"u": older}}))

        assert loaded.num_dropped == 0
        assert loaded.calibrations.objects["u"].kv_tokens == 70_000

    def test_a_history_from_before_rises_were_kept_reads_as_one_without_any(self):
        older = a_history()
        del older["rises"], older["held"]
        loaded = load_objects(json.dumps({"version": 3, "objects": {"u": an_object(demand=older)}}))
        known = loaded.calibrations.objects["u"].demand

        assert loaded.num_dropped == 0
        assert (known.rises, known.held) == (FIRST, NOTHING_HELD)

    def test_a_history_from_before_heights_were_kept_takes_the_highest_that_can_have_been(self):
        older = a_history(peaks={"first": 8, "text": "iB"})
        del older["heights"]
        loaded = load_objects(json.dumps({"version": 3, "objects": {"u": an_object(demand=older)}}))
        known = loaded.calibrations.objects["u"].demand

        assert loaded.num_dropped == 0
        ratio, planned = figures(known.peaks)[8], figures(known.planned)[8]
        assert figures(known.heights)[8] == pytest.approx(ratio * planned, rel=0.01)

    def test_a_later_one_of_a_history_is_told_apart(self):
        with pytest.raises(NewerStateError, match=r"history of version 2, .* up to 1"):
            load_objects(a_shard(version=2, means="anything"))

    @pytest.mark.parametrize("load", [load_shared, load_objects])
    @pytest.mark.parametrize("version", [0, 1, -3, "3", None, [1], True, 3.0])
    def test_one_that_never_was_is_corrupted(self, load, version):
        with pytest.raises(CorruptedStateError):
            load(json.dumps(a_state(version=version)))

    def test_version_2_had_no_shards(self):
        with pytest.raises(CorruptedStateError, match="no shards"):
            load_objects('{"version": 2}')

    @pytest.mark.parametrize("load", [load_shared, load_objects])
    @pytest.mark.parametrize("text", ["", "{", "null", "[]", '"text"', "[" * 100_000, "{}"])
    def test_what_is_no_state_at_all_is_corrupted(self, load, text):
        with pytest.raises(CorruptedStateError):
            load(text)

    @given(st.integers(1, 300))
    def test_a_truncated_one_is_corrupted(self, length):
        text = json.dumps(a_state())

        with pytest.raises(CorruptedStateError):
            load_shared(text[: min(length, len(text) - 1)])


NO_FIGURES = [-1, "1", True, None, [], float("nan"), float("inf"), 10**400]


class TestWhatIsDropped:
    @pytest.mark.parametrize("value", NO_FIGURES)
    @pytest.mark.parametrize(
        "name",
        [
            "overheadFactor",
            "bandwidthEfficiency",
            "prefillEfficiency",
            "covariance",
            "numWindows",
            "numSteps",
            "learnedAt",
        ],
    )
    def test_is_a_speed_with_a_figure_that_is_none(self, name, value):
        entries = {"bad": a_speed(**{name: value}), "good": a_speed()}

        loaded = load_shared(json.dumps(a_state(speed={"blue": entries})))

        assert list(loaded.calibrations.speed) == [("blue", "good")]
        assert loaded.num_dropped == 1

    @pytest.mark.parametrize(
        "entry",
        [
            {},
            None,
            [0.7, 100, 5],
            a_speed(bandwidthEfficiency=0),
            a_speed(bandwidthEfficiency=1.6),
            a_speed(overheadFactor=101),
            a_speed(surprise="much"),
            a_speed(numWindows=2.5),
            a_speed(covariance=[0.01] * 5),
            a_speed(covariance=[0.01, 0, 0, 0.01, 0, float("nan")]),
        ],
    )
    def test_is_a_speed_that_cannot_be(self, entry):
        loaded = load_shared(json.dumps(a_state(speed={"blue": {"bad": entry}})))

        assert loaded.calibrations.speed == {}
        assert loaded.num_dropped == 1

    @pytest.mark.parametrize("tokens", ["NaN", "Infinity", "-1", "0", "1e400", "1" + "0" * 400])
    def test_is_an_amount_of_tokens_that_is_none(self, tokens):
        loaded = load_shared(json.dumps(a_state()).replace("70000", tokens))

        assert loaded.calibrations.memory == {}
        assert len(loaded.calibrations.speed) == 1

    @pytest.mark.parametrize("value", [v for v in NO_FIGURES if v is not None])
    @pytest.mark.parametrize("name", ["goodputFactor", "numJudged", "kvTokens", "slotsMovedAt"])
    def test_is_an_object_with_a_figure_that_is_none(self, name, value):
        objects = {"bad": an_object(**{name: value}), "good": an_object()}

        loaded = load_objects(json.dumps({"version": 3, "objects": objects}))

        assert list(loaded.calibrations.objects) == ["good"]
        assert loaded.num_dropped == 1

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("goodputFactor", 0.19),
            ("goodputFactor", 1.51),
            ("goodputFactor", 100),
            ("burstFactor", 0.99),
            ("burstFactor", 3.01),
        ],
    )
    def test_is_an_object_with_a_factor_that_no_learner_comes_to(self, name, value):
        loaded = load_objects(
            json.dumps({"version": 3, "objects": {"u": an_object(**{name: value})}})
        )

        assert (loaded.calibrations.objects, loaded.num_dropped) == ({}, 1)

    @pytest.mark.parametrize(
        "start",
        [
            {"coldStartSeconds": -360},
            {"coldStartSeconds": 0},
            {"coldStartSeconds": 11_040},
            {"coldStartSeconds": 1e15},
            {"coldStartSeconds": float("nan")},
            {"coldStartSeconds": "90"},
            {"coldStartDeviationSeconds": 7201},
            {"nodeWaitSeconds": 901},
            {"numStarts": -1},
        ],
    )
    def test_are_starts_that_no_learner_comes_to_and_nothing_else_of_the_object(self, start):
        objects = {"u": an_object(**start)}

        loaded = load_objects(json.dumps({"version": 3, "objects": objects}))

        [known] = loaded.calibrations.objects.values()
        assert (known.cold_start_s, known.node_wait_s, known.num_starts) == (None, 0, 0)
        assert (known.goodput_factor, known.kv_tokens) == (0.9, 70_000)
        assert loaded.num_dropped == 1

    def test_are_no_starts_that_an_earlier_version_wrote_without_waits(self):
        entry = an_object()
        del entry["nodeWaitSeconds"]

        loaded = load_objects(json.dumps({"version": 3, "objects": {"u": entry}}))

        [known] = loaded.calibrations.objects.values()
        assert (known.cold_start_s, known.node_wait_s, loaded.num_dropped) == (90, 0, 0)

    @pytest.mark.parametrize("key", [5, "k" * 65, None])
    def test_is_an_object_with_a_memory_key_that_is_none(self, key):
        state = {"version": 3, "objects": {"bad": an_object(memoryKey=key)}}

        assert load_objects(json.dumps(state)).num_dropped == 1

    @pytest.mark.parametrize("key", ["", "k" * 65])
    def test_is_a_key_that_we_do_not_make(self, key):
        loaded = load_shared(json.dumps(a_state(speed={"blue": {key: a_speed()}})))

        assert (loaded.calibrations.speed, loaded.num_dropped) == ({}, 1)

    def test_is_a_whole_section_that_is_none(self):
        loaded = load_shared(json.dumps(a_state(speed=[], memory={"blue": 5})))

        assert loaded.num_dropped == 2
        assert loaded.calibrations == Calibrations(inherited={"k": 0.6})

    @given(json_values, json_values, json_values)
    def test_is_garbage_of_any_form(self, speed, memory, objects):
        state = a_state(speed=speed, memory=memory, inherited=speed, objects=objects)
        known = load_shared(json.dumps(state)).calibrations

        assert all(0 < each.bandwidth_efficiency <= 1.5 for each in known.speed.values())
        assert all(each.kv_tokens > 0 for each in known.memory.values())
        assert all(0 < each <= 1.5 for each in known.inherited.values())
        load_objects(json.dumps(state))


def test_a_covariance_that_is_none_is_set_wide_and_the_constants_stay():
    entry = a_speed(covariance=[0.01, 0.5, 0, 0.25, 0, 0.01])

    loaded = load_shared(json.dumps(a_state(speed={"blue": {"k": entry}})))

    [posterior] = loaded.calibrations.speed.values()
    assert posterior.covariance == pytest.approx((0.09, 0, 0, 0.25, 0, 0.09))
    assert posterior.overhead_factor == 1.25
    assert (loaded.num_dropped, loaded.num_widened) == (0, 1)


LEDGER = Ledger(limits={"TTFT 2.00 s": {490_000: (1234.5, 12.0), 490_002: (10.0, 0.0)}})
ENTRY = {
    "windowSeconds": 86_400,
    "limits": {"TTFT 2.00 s": {"first": 490_000, "bins": [[1234.5, 12], [0, 0], [10, 0]]}},
}


class TestALedger:
    def test_is_written_so(self):
        written = json.loads(dump_objects({"u": ObjectPosterior(ledger=LEDGER)}))

        assert written["objects"]["u"]["ledger"] == ENTRY

    @pytest.mark.parametrize(
        "changes",
        [
            {"windowSeconds": 60},
            {"windowSeconds": 1e9},
            {"windowSeconds": 604_801},  # more than a week
            {"windowSeconds": None},
            {"limits": []},
            {"limits": {f"TTFT {each} s": {"first": 1, "bins": [[1, 0]]} for each in range(9)}},
            {"limits": {"x" * 65: {"first": 1, "bins": [[1, 0]]}}},
            {"limits": {"TTFT 2.00 s": {"first": 1.5, "bins": [[1, 0]]}}},
            {"limits": {"TTFT 2.00 s": {"first": 1, "bins": []}}},
            {"limits": {"TTFT 2.00 s": {"first": 1, "bins": [[0, 0]]}}},
            {"limits": {"TTFT 2.00 s": {"first": 1, "bins": [[1, 0]] * 25}}},
            {"limits": {"TTFT 2.00 s": {"first": 1, "bins": [[1, 2]]}}},
            {"limits": {"TTFT 2.00 s": {"first": 1, "bins": [[1, -1]]}}},
            {"limits": {"TTFT 2.00 s": {"first": 1, "bins": [[1]]}}},
        ],
    )
    def test_that_cannot_be_goes_alone(self, changes):
        loaded = load_objects(
            json.dumps({"version": 3, "objects": {"u": an_object(ledger=ENTRY | changes)}})
        )

        known = loaded.calibrations.objects["u"]
        assert (known.ledger, known.goodput_factor, loaded.num_dropped) == (None, 0.9, 1)


class TestAHistoryThatIsDropped:
    def dropped(self, text):
        """Tell whether the history went, alone, and was counted."""
        loaded = load_objects(text)
        known = loaded.calibrations.objects["u"]
        assert known.goodput_factor == 0.9
        return known.demand is None and loaded.num_dropped == 1

    def test_is_not_one_of_ours(self):
        assert not self.dropped(a_shard())

    @pytest.mark.parametrize("value", [v for v in NO_FIGURES if v != "1"])
    @pytest.mark.parametrize("name", ["keptAt", "unitRequestsPerSecond", "unit"])
    def test_has_a_figure_that_is_none(self, name, value):
        assert self.dropped(a_shard(**{name: value}))

    @pytest.mark.parametrize("version", [0, -1, "1", None, True, 1.5])
    def test_is_of_a_version_that_never_was(self, version):
        assert self.dropped(a_shard(version=version))

    @pytest.mark.parametrize("name", ["means", "peaks", "planned"])
    @pytest.mark.parametrize(
        "row",
        [
            None,
            [],
            "ABAB",
            {"first": 8},
            {"first": -8, "text": "AB"},
            {"first": 8.5, "text": "AB"},
            {"first": 8, "text": 12},
            {"first": 8, "text": ["A", "B"]},
            {"first": 8, "text": "A"},
            {"first": 8, "text": "A!"},
            {"first": 8, "text": "gB" * 1153},
        ],
    )
    def test_has_figures_of_bins_that_are_none(self, name, row):
        assert self.dropped(a_shard(**{name: row}))

    @pytest.mark.parametrize("name", ["planned", "heights"])
    def test_has_peaks_over_nothing_known(self, name):
        assert self.dropped(a_shard(**{name: {"first": 9, "text": "gB"}}))

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
            # More than twelve hours of notes weigh, and a mean loss of more than any fleet.
            {"trend": [1, 722]},
            {"trend": [10_001 * 30, 30]},
            {str(way): [1, 30] for way in range(6)},
        ],
    )
    def test_has_a_record_that_cannot_be(self, record):
        assert self.dropped(a_shard(record=record))

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
        assert self.dropped(a_shard(**changes))

    @given(json_values)
    def test_is_anything_else(self, entry):
        text = json.dumps({"version": 3, "objects": {"u": an_object(demand=entry)}})

        assert entry is None or self.dropped(text)
