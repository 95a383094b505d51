"""What is worth a write, and what goes when there is no room."""

from dataclasses import replace

import pytest

from measured_builders import a_posterior
from tonnage.estimate.budget import Ledger
from tonnage.estimate.calibration import EVERYONE, Calibrations, Scope
from tonnage.estimate.forecast import Score
from tonnage.estimate.keeping import (
    MAX_SHARD_BYTES,
    MAX_SHARED_BYTES,
    NUM_SHARDS,
    fitting_objects,
    fitting_shared,
    has_moved,
    is_look_due,
    shard_of,
)
from tonnage.estimate.kept_history import MAX_BINS, MAX_PEAK_BINS, KeptHistory, row
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior
from tonnage.estimate.stored import dump_objects, dump_shared
from tonnage.estimate.ways import WAYS
from tonnage.units import KIB, MIB

SPEED = a_posterior(covariance=(0.01, 0.0, 0.0, 0.01, 0.0, 0.01), num_windows=10)
OBJECT = ObjectPosterior(
    goodput_factor=0.9, num_judged=100, cold_start_s=60, memory_key="m", kv_tokens=1e5
)


def a_history(kept_at_s=1.8e9):
    """As long as one can be: eight days of means, one of peaks, a record of every way."""
    first = int(kept_at_s // 600)
    a_day = row({first + each: 1.5 for each in range(MAX_PEAK_BINS)})
    return KeptHistory(
        kept_at_s=kept_at_s,
        unit=20 * "0",
        unit_requests_per_s=1.23456789,
        means=row({first + each: 7.5 for each in range(MAX_BINS)}),
        peaks=a_day,
        planned=a_day,
        heights=a_day,
        scores={way: Score(loss=123.456789, weight=720.123456) for way in WAYS},
    )


HISTORY = a_history()
LEDGER = Ledger(
    limits={
        target: {490_000 + each: (12_345.6 + each, 123.456) for each in range(24)}
        for target in ("TTFT 2.00 s", "TPOT 50.0 ms")
    }
)


def a_speed(**changes):
    return Calibrations(speed={Scope("blue", "k"): replace(SPEED, **changes)})


def an_object(**changes):
    return Calibrations(objects={"u": replace(OBJECT, **changes)})


class TestWhatIsWorthAWrite:
    @pytest.mark.parametrize(
        "changes",
        [
            {"overhead_factor": 1.021},
            {"bandwidth_efficiency": 0.7 * 0.979},
            {"prefill_efficiency": 0.5 * 1.021},
            # A deviation of 0.1 that became 0.06, and 0.14.
            {"covariance": (0.0036, 0, 0, 0.01, 0, 0.01)},
            {"covariance": (0.01, 0, 0, 0.01, 0, 0.0196)},
            {"num_windows": 16},
            {"num_windows": 4},
        ],
    )
    def test_is_a_speed_that_moved(self, changes):
        assert has_moved(a_speed(), a_speed(**changes))

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"overhead_factor": 1.019, "bandwidth_efficiency": 0.71, "prefill_efficiency": 0.492},
            {"covariance": (0.0064, 0.001, 0, 0.01, 0, 0.01)},
            {"num_windows": 15, "num_steps": 1e9, "surprise": 3, "learned_at_s": 1e9},
            {"num_windows": 5},  # half of it
        ],
    )
    def test_is_not_a_speed_that_wavers(self, changes):
        assert not has_moved(a_speed(), a_speed(**changes))

    def test_is_not_more_evidence_where_there_is_enough(self):
        assert not has_moved(a_speed(num_windows=16), a_speed(num_windows=16_000))

    def test_is_the_first_evidence(self):
        assert has_moved(a_speed(num_windows=0), a_speed(num_windows=1))
        assert not has_moved(a_speed(num_windows=0), a_speed(num_windows=0))

    def test_is_not_a_small_doubt_that_became_smaller(self):
        narrow = (0.0001, 0, 0, 0.0001, 0, 0.0001)  # deviations of 1 %
        narrower = (1e-6, *narrow[1:])

        assert not has_moved(a_speed(covariance=narrow), a_speed(covariance=narrower))

    def test_is_no_matter_of_a_negative_variance(self):
        assert not has_moved(a_speed(), a_speed(covariance=(0.01, 0, 0, 0.01, 0, 0.01)))
        assert has_moved(a_speed(), a_speed(covariance=(-1e-12, 0, 0, 0.01, 0, 0.01)))

    @pytest.mark.parametrize(
        "changes",
        [
            {"goodput_factor": 0.92},
            {"num_judged": 500},
            {"num_judged": 10},
            {"burst_factor": 1.6},
            {"cold_start_s": 62},
            {"cold_start_s": None},
            {"memory_key": "other"},
            {"kv_tokens": 9e4},
            {"kv_tokens": None},
            {"slots_moved_at_s": 1.8e9},
            {"demand": HISTORY},
            {"ledger": LEDGER},
        ],
    )
    def test_is_an_object_that_moved(self, changes):
        assert has_moved(an_object(), an_object(**changes))

    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"goodput_factor": 0.91, "cold_start_s": 61, "kv_tokens": 1.01e5},
            {"num_judged": 300, "judged_at_s": 1e9, "num_starts": 9, "cold_start_deviation_s": 2},
        ],
    )
    def test_is_not_an_object_that_wavers(self, changes):
        assert not has_moved(an_object(), an_object(**changes))

    def test_is_a_pool_that_changed_by_more_than_two_percent(self):
        def pool(tokens):
            return Calibrations(memory={Scope("blue", "m"): MemoryReport(kv_tokens=tokens)})

        assert has_moved(pool(100), pool(97))
        assert not has_moved(pool(100), pool(99))

    @pytest.mark.parametrize("known", [a_speed(), an_object()])
    def test_is_what_is_new_and_not_what_is_gone(self, known):
        assert has_moved(Calibrations(), known)
        assert not has_moved(known, Calibrations())


def speeds(namespace, num, *, from_s=0):
    return {
        Scope(namespace, f"{each:020}"): a_posterior(learned_at_s=from_s + each)
        for each in range(num)
    }


def of(known, namespace):
    return sorted(int(scope.key) for scope in known.speed if scope.namespace == namespace)


class TestRoom:
    def test_what_fits_stays_as_it_is(self):
        known = Calibrations(speed=speeds("blue", 3))

        assert fitting_shared(known, live=set()) is known

    def test_the_oldest_of_namespaces_without_objects_go_first(self):
        known = Calibrations(
            speed=speeds("gone", 20, from_s=1e6) | speeds("blue", 20), inherited={"k": 0.6}
        )

        fitting = fitting_shared(known, live={"blue"}, max_bytes=6 * KIB)

        assert of(fitting, "blue") == list(range(20))
        gone = of(fitting, "gone")
        assert gone == list(range(20 - len(gone), 20))
        assert 0 < len(gone) < 20
        assert fitting.inherited == known.inherited

    def test_one_namespace_displaces_its_own_and_not_its_neighbours(self):
        noisy = speeds("noisy", 200, from_s=1e6)

        fitting = fitting_shared(
            Calibrations(speed=noisy | speeds("quiet", 3)),
            live={"noisy", "quiet"},
            max_bytes=6 * KIB,
        )

        assert of(fitting, "quiet") == [0, 1, 2]
        kept = of(fitting, "noisy")
        assert kept == list(range(200 - len(kept), 200))

    def test_pools_share_the_room_with_speeds(self):
        pools = {
            Scope(EVERYONE, f"{each:020}"): MemoryReport(kv_tokens=1e5, reported_at_s=each)
            for each in range(100)
        }

        fitting = fitting_shared(
            Calibrations(memory=pools, speed=speeds("blue", 1)), live={"blue"}, max_bytes=2 * KIB
        )

        assert of(fitting, "blue") == [0]
        assert 0 < len(fitting.memory) < 100
        assert min(scope.key for scope in fitting.memory) == f"{100 - len(fitting.memory):020}"

    @pytest.mark.parametrize("max_bytes", [2 * KIB, 16 * KIB, 100 * KIB])
    def test_what_is_kept_is_within_the_room_and_nearly_fills_it(self, max_bytes):
        known = Calibrations(speed=speeds("blue", 1000) | speeds("x" * 63, 1000))

        num_bytes = len(dump_shared(fitting_shared(known, live={"blue"}, max_bytes=max_bytes)))

        assert 0.6 * max_bytes < num_bytes <= max_bytes

    def test_what_was_inherited_stays_and_takes_of_the_room(self):
        inherited = {f"{each:020}": 0.6 for each in range(50)}
        known = Calibrations(speed=speeds("blue", 20), inherited=inherited)

        fitting = fitting_shared(known, live={"blue"}, max_bytes=4 * KIB)

        assert fitting.inherited == inherited
        assert 0 < len(fitting.speed) < 20
        assert len(dump_shared(fitting)) <= 4 * KIB

    def test_of_objects_the_oldest_that_are_gone_go_first(self):
        objects = {f"u{each:02}": replace(OBJECT, judged_at_s=each) for each in range(30)}
        live = {f"u{each:02}" for each in range(5)}

        fitting = fitting_objects(objects, live=live, max_bytes=2 * KIB)

        others = sorted(fitting.keys() - live)
        assert live < fitting.keys()
        assert others == [f"u{each:02}" for each in range(30 - len(others), 30)]
        assert len(dump_objects(fitting)) <= 2 * KIB

    def test_a_shard_takes_more_than_a_thousand_objects(self):
        # 16 shards: as many as one operator serves, many times over.
        objects = {f"{each:036}": OBJECT for each in range(2000)}

        assert fitting_objects(objects, live=()) is objects
        assert len(dump_objects(objects)) < MAX_SHARD_BYTES

    def test_a_history_takes_three_and_a_half_kib(self):
        without = {"u": OBJECT}
        with_it = {"u": replace(OBJECT, demand=HISTORY)}

        num_bytes = len(dump_objects(with_it)) - len(dump_objects(without))

        assert 3.3 * KIB < num_bytes < 3.7 * KIB

    def test_a_thousand_objects_with_their_histories_and_ledgers_fit(self):
        shards, known = [{} for _ in range(NUM_SHARDS)], replace(OBJECT, demand=HISTORY)
        for each in range(1000):
            shards[shard_of(f"uid-{each}")][f"{each:036}"] = replace(known, ledger=LEDGER)

        assert max(len(dump_objects(shard)) for shard in shards) < 0.8 * MAX_SHARD_BYTES

    def test_ledgers_go_before_histories(self):
        known = replace(OBJECT, demand=HISTORY, ledger=LEDGER)
        objects = {f"u{each}": known for each in range(6)}
        most = len(dump_objects({uid: replace(known, ledger=None) for uid in objects}))

        fitting = fitting_objects(objects, live=objects, max_bytes=most)

        assert set(fitting) == set(objects)
        assert all((each.ledger, each.demand) == (None, HISTORY) for each in fitting.values())

    def test_histories_go_before_what_else_is_known(self):
        objects = {f"u{each}": replace(OBJECT, demand=a_history(1.8e9 + each)) for each in range(6)}

        fitting = fitting_objects(objects, live={"u0", "u5"}, max_bytes=12 * KIB)

        assert fitting.keys() == objects.keys()
        assert {replace(each, demand=None) for each in fitting.values()} == {OBJECT}
        assert [uid for uid, each in fitting.items() if each.demand] == ["u0", "u4", "u5"]
        assert len(dump_objects(fitting)) <= 12 * KIB

    def test_without_room_for_any_history_the_oldest_that_are_gone_go_as_before(self):
        objects = {
            f"u{each:02}": replace(OBJECT, judged_at_s=each, demand=HISTORY) for each in range(30)
        }

        fitting = fitting_objects(objects, live=(), max_bytes=2 * KIB)

        assert list(fitting) == [f"u{each:02}" for each in range(30 - len(fitting), 30)]
        assert not any(each.demand for each in fitting.values())

    def test_is_within_a_config_map(self):
        assert MAX_SHARED_BYTES == 0.75 * MIB
        assert MAX_SHARD_BYTES == 0.5 * MIB


class TestShards:
    def test_are_the_same_in_every_process(self):
        assert shard_of("0f9a6e1c-0d7d-4b0e-9f44-0a3a0ad4f3a1") == 12

    def test_are_filled_evenly(self):
        shards = [shard_of(f"uid-{each}") for each in range(3200)]

        sizes = [shards.count(each) for each in range(NUM_SHARDS)]
        assert min(sizes) > 150
        assert max(sizes) < 250


class TestLook:
    def test_is_due_once_an_hour(self):
        minutes = range(0, 24 * 3600, 60)

        due = [is_look_due("u", before_s=at_s, now_s=at_s + 60) for at_s in minutes]

        assert sum(due) == 24

    def test_is_due_after_a_gap_and_not_without_a_note_before(self):
        assert is_look_due("u", before_s=0, now_s=3600)
        assert not is_look_due("u", before_s=7000, now_s=7000)

    def test_is_due_for_all_of_a_shard_at_once_and_for_every_shard_at_another_time(self):
        uids = [f"uid-{each}" for each in range(320)]
        due_at = {
            uid: next(
                at_s
                for at_s in range(0, 3600, 15)
                if is_look_due(uid, before_s=at_s - 15, now_s=at_s)
            )
            for uid in uids
        }

        by_shard = {
            shard_of(uid): {due_at[each] for each in uids if shard_of(each) == shard_of(uid)}
            for uid in uids
        }
        assert all(len(times) == 1 for times in by_shard.values())
        assert len(set().union(*by_shard.values())) == NUM_SHARDS
