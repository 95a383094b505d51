"""What is worth a write, and what goes when there is no room."""

from dataclasses import replace

import pytest

from measured_builders import a_posterior
from tonnage.estimate.calibration import Calibrations, Scope
from tonnage.estimate.forecasters import WAYS
from tonnage.estimate.headroom import KeptRecord, Score
from tonnage.estimate.posterior import MemoryReport, ObjectPosterior, Trial, Unmended
from tonnage.estimate.stored import MAX_BYTES, dump, fitting, has_moved
from tonnage.units import KIB, MIB

SPEED = a_posterior(covariance=(0.01, 0.0, 0.0, 0.01, 0.0, 0.01), num_windows=10)
OBJECT = ObjectPosterior(
    goodput_factor=0.9, num_judged=100, cold_start_s=60, memory_key="m", kv_tokens=1e5
)


WILD = KeptRecord(record={}, rises=(90.0, 0.0, 0.0, 0.0, 0.0, 30.0))
"""A quarter of all notes stood more than 15 % above the plan."""
RETURNS = KeptRecord(record={}, held=((100.0, 50.0), (0.0, 90.0), (0.0, 150.0), (0.0, 200.0)))
"""Who held for six starts was never short."""
TRIAL = Trial(target="t", late_share=0.1, replicas=2, requests_per_s_each=1, factor=1)
FULL = KeptRecord(
    record=dict.fromkeys(WAYS, (123.4, 720.1)),
    rises=(1234.0, 12.34, 1.234, 0.1234, 0.1234, 0.1234),
    held=((123.4, 12.34), (12.34, 123.4), (1.234, 1234.0), (1.234, 1234.0)),
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
            {"trial": TRIAL},
            {"unmended": (Unmended("t", most=0.1, share=0.1),)},
            {"demand": WILD},
            {"demand": RETURNS},
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
            {"demand": KeptRecord(record={"trend": Score(9.0, 60.0)})},
            {"demand": replace(WILD, rises=(28.0, 0.0, 3.0, 0.0, 0.0, 0.0))},
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


LIVE = Calibrations(speed=speeds("blue", 10))


def of(known, namespace):
    return sorted(int(scope.key) for scope in known.speed if scope.namespace == namespace)


class TestRoom:
    def test_what_fits_stays_as_it_is(self):
        known = Calibrations(speed=speeds("blue", 3))

        assert fitting(known, live={}) is known

    def test_the_oldest_of_what_is_of_no_object_goes_first(self):
        objects = {f"u{each:02}": replace(OBJECT, judged_at_s=each) for each in range(20)}
        known = Calibrations(speed=speeds("gone", 10, from_s=1e6) | LIVE.speed, objects=objects)

        kept = fitting(known, live={"u03": "blue"}, max_bytes=5 * KIB)

        assert of(kept, "blue") == list(range(10))
        assert "u03" in kept.objects
        others = sorted(kept.objects.keys() - {"u03"})
        assert 0 < len(others) < 19
        assert others == [f"u{each:02}" for each in range(20 - len(others), 20)]
        assert of(kept, "gone") == list(range(10))

    def test_one_namespace_displaces_its_own_and_not_its_neighbours(self):
        noisy = speeds("noisy", 200, from_s=1e6)

        kept = fitting(
            Calibrations(speed=noisy | speeds("quiet", 3)),
            live={"u": "noisy", "v": "quiet"},
            max_bytes=6 * KIB,
        )

        assert of(kept, "quiet") == [0, 1, 2]
        left = of(kept, "noisy")
        assert left == list(range(200 - len(left), 200))

    def test_two_namespaces_of_many_objects_lose_the_oldest_of_each(self):
        objects = {
            f"{name}-{each:02}": replace(OBJECT, judged_at_s=each + 100 * (name == "a"))
            for each in range(30)
            for name in "ab"
        }
        live = {uid: uid[0] for uid in objects}

        kept = fitting(Calibrations(objects=objects), live=live, max_bytes=4 * KIB)

        counts = {name: sum(uid[0] == name for uid in kept.objects) for name in "ab"}
        assert abs(counts["a"] - counts["b"]) <= 1
        assert {"a-29", "b-29"} <= kept.objects.keys()

    def test_pools_share_the_room_with_speeds(self):
        pools = {
            Scope("gone", f"{each:020}"): MemoryReport(kv_tokens=1e5, reported_at_s=each)
            for each in range(100)
        }

        kept = fitting(
            Calibrations(memory=pools, speed=speeds("blue", 1)),
            live={"u": "blue"},
            max_bytes=2 * KIB,
        )

        assert of(kept, "blue") == [0]
        assert 0 < len(kept.memory) < 100
        assert min(scope.key for scope in kept.memory) == f"{100 - len(kept.memory):020}"

    @pytest.mark.parametrize("max_bytes", [2 * KIB, 16 * KIB, 100 * KIB])
    def test_what_is_kept_is_within_the_room_and_nearly_fills_it(self, max_bytes):
        known = Calibrations(speed=speeds("blue", 1000) | speeds("x" * 63, 1000))

        num_bytes = len(dump(fitting(known, live={"u": "blue"}, max_bytes=max_bytes)))

        assert 0.6 * max_bytes < num_bytes <= max_bytes

    def test_a_thousand_objects_with_a_hundred_speeds_fit(self):
        # As many as one operator serves; with full records of all that can be recorded.
        objects = {f"{each:036}": replace(OBJECT, demand=FULL) for each in range(1000)}
        known = Calibrations(objects=objects, speed=speeds("blue", 100))

        assert fitting(known, live=dict.fromkeys(objects, "blue")) is known

    def test_is_within_a_config_map(self):
        assert MAX_BYTES == 0.75 * MIB
