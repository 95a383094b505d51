"""What is made of the answers: figures of one engine, or none."""

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.estimate.joined import join
from tonnage.estimate.samples import ArrivalWindow, LengthWindow
from tonnage.estimate.series import UNUSABLE, Series, Vector
from tonnage.settings import Settings

NOW_S = 1_000_000.0
SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
RELABELED = Settings(
    prometheus_url="http://prometheus.test:9090",
    pod_label="kubernetes_pod_name",
    namespace_label="exported_namespace",
)


def series(value, *, pod="a", engine="0", namespace="serving", at_s=NOW_S, **labels):
    given_labels = {"namespace": namespace, "pod": pod, "engine": engine, **labels}
    present = {key: each for key, each in given_labels.items() if each is not None}
    return Series(labels=present, value=value, evaluated_at_s=at_s)


def joined(settings=SETTINGS, **answers):
    return join(answers, settings)


def the_engine(**answers):
    [samples] = joined(**answers).engines["serving", "a"]
    return samples


class TestJoin:
    def test_puts_the_figures_of_an_engine_together(self):
        samples = the_engine(
            timestamp=[series(NOW_S - 7)],
            running=[series(3)],
            waiting=[series(2)],
            running_growth_8=[series(-60)],
            waiting_growth_8=[series(30)],
            completions_8=[series(1, finished_reason="stop"), series(2, finished_reason="length")],
            completions_20=[series(5)],
            ttft=[series(1, le="2.0"), series(4, le="+Inf")],
        )

        assert (samples.pod, samples.engine) == ("a", "0")
        assert samples.age_s == 7
        assert (samples.running, samples.waiting) == (3, 2)
        # Of 8 scrapes, 15 s apart: what left the batch and what joined the queue.
        assert samples.arrivals[8].backlog_growth_per_s == -30 / 120
        assert samples.arrivals[8].completions_per_s == 3
        assert samples.arrivals[20].completions_per_s == 5
        assert samples.arrivals[4] == ArrivalWindow()
        assert samples.ttft_within == {2.0: 1, math.inf: 4}

    def test_is_as_old_as_the_newest_scrape_of_an_engine(self):
        assert the_engine(timestamp=[series(NOW_S - 7), series(NOW_S - 3)]).age_s == 3

    def test_keeps_bounds_below_a_second_and_counts_of_none(self):
        samples = the_engine(tpot=[series(0, le="0.05"), series(4, le="+Inf")])

        assert samples.tpot_within == {0.05: 0, math.inf: 4}

    def test_a_bound_of_zero_is_dropped(self):
        assert the_engine(ttft=[series(1, le="0.0"), series(2, le="+Inf")]).ttft_within == {
            math.inf: 2
        }

    def test_takes_a_figure_as_large_as_any_and_no_larger(self):
        samples = the_engine(
            running=[series(1e7)], waiting=[series(1.01e7)], ttft=[series(1e15, le="1.0")]
        )

        assert (samples.running, samples.waiting) == (1e7, None)
        assert samples.ttft_within == {1.0: 1e15}

    def test_leaves_what_was_not_answered_missing(self):
        samples = the_engine(waiting=[series(0)])

        assert samples.waiting == 0
        assert samples.running is None
        assert samples.age_s is None
        assert samples.kv_tokens is None
        assert samples.ttft_within == {}

    def test_growth_of_one_queue_alone_is_not_the_growth_of_both(self):
        samples = the_engine(running_growth_4=[series(1)])

        assert samples.arrivals[4].backlog_growth_per_s is None

    def test_keeps_namespaces_apart_that_have_a_pod_of_the_same_name(self):
        found = joined(running=[series(1, namespace="blue"), series(2, namespace="green")])

        assert [e.running for e in found.engines["blue", "a"]] == [1]
        assert [e.running for e in found.engines["green", "a"]] == [2]

    def test_keeps_the_ranks_of_a_pod_apart(self):
        found = joined(running=[series(1, engine="0"), series(2, engine="1")])

        assert sorted(each.running for each in found.engines["serving", "a"]) == [1, 2]

    def test_counts_what_has_no_engine_with_the_pod(self):
        # Rejections carry none; an old engine has the label nowhere.
        ranks = joined(
            completions_4=[series(1, engine="0"), series(1, engine="1")],
            rejections_4=[series(5, engine=None, reason="max_num_queued_reqs")],
        ).engines["serving", "a"]
        old = joined(completions_4=[series(1, engine=None)]).engines["serving", "a"]

        assert [each.arrivals[4].rejections_per_s for each in ranks] == [5, None]
        assert [each.arrivals[4].completions_per_s for each in old] == [1]

    def test_counts_who_was_refused_beside_the_histogram_of_those_who_were_not(self):
        told = {"ttft": [series(3, le="2.0"), series(4, le="+Inf")]}
        reasons = [series(1, reason="max_num_queued_reqs"), series(2, reason="other")]
        [found] = joined(**told, rejections_8=reasons).engines["serving", "a"]
        [older] = joined(**told).engines["serving", "a"]
        [bad] = joined(**told, rejections_8=[series(-1, reason="other")]).engines["serving", "a"]

        assert (found.refused_per_s, older.refused_per_s) == (3, 0)
        assert found.ttft_within[2.0] == older.ttft_within[2.0] == 3
        assert bad.ttft_within == {}  # how many more were late nobody knows

    def test_drops_series_of_nobody(self):
        found = joined(running=[series(1, pod=None), series(1, namespace=None)])

        assert found.engines == {}

    def test_reads_the_labels_that_the_administrator_names(self):
        labels = {"exported_namespace": "serving", "kubernetes_pod_name": "a", "engine": "0"}
        answer = [Series(labels=labels, value=1, evaluated_at_s=NOW_S)]

        assert joined(RELABELED, running=answer).engines["serving", "a"][0].running == 1

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e308])
    @pytest.mark.parametrize(
        "name", ["running", "completions_4", "kv_usage", "ttft", "dram_active"]
    )
    def test_a_value_that_cannot_be_is_missing(self, name, value):
        samples = the_engine(**{name: [series(value, le="2.0")]}, waiting=[series(1)])

        assert samples.running is samples.kv_usage_fraction is samples.dram_active_fraction is None
        assert samples.arrivals[4].completions_per_s is None
        assert samples.ttft_within == {}

    @pytest.mark.parametrize("value", [math.nan, math.inf, -1e308])
    def test_a_growth_that_cannot_be_is_missing(self, value):
        samples = the_engine(running_growth_4=[series(value)], waiting_growth_4=[series(1)])

        assert samples.arrivals[4].backlog_growth_per_s is None

    @pytest.mark.parametrize("part", [-1, UNUSABLE])
    def test_a_figure_of_which_a_part_cannot_be_is_missing(self, part):
        parts = [series(3, finished_reason="stop"), series(part, finished_reason="abort")]

        assert the_engine(completions_4=parts).arrivals[4].completions_per_s is None

    def test_arrivals_are_missing_where_a_reason_of_rejection_cannot_be(self):
        parts = [series(8, reason="max_num_queued_reqs"), series(UNUSABLE, reason="other")]
        told = {
            "completions_4": [series(2)],
            "completed": [series(9)],
            "running": [series(1)],
            "queued": [series(0)],
        }

        without, bad = the_engine(**told), the_engine(**told, rejections_4=parts, rejected=parts)

        assert (without.arrivals[4].completions_per_s, without.arrived) == (2, 10)
        assert (bad.arrivals[4], bad.arrived) == (ArrivalWindow(), None)

    def test_an_engine_without_a_scrape_that_can_be_seen_is_three_intervals_old(self):
        assert the_engine(running=[series(1)]).age_s == 3 * 15

    def test_a_scrape_without_a_time_is_not_the_newest(self):
        ages = [series(NOW_S - 15), series(UNUSABLE, job="other")]

        samples = the_engine(timestamp=ages, running=[series(1)])

        assert (samples.age_s, samples.scraped_at_s) == (15, NOW_S - 15)

    @pytest.mark.parametrize(("value", "fraction"), [(1.0, 1.0), (1.001, None), (0.0, 0.0)])
    def test_a_share_is_at_most_one(self, value, fraction):
        assert the_engine(kv_usage=[series(value)]).kv_usage_fraction == fraction

    @pytest.mark.parametrize("le", ["", "two", "nan", None])
    def test_a_bound_that_is_none_is_dropped(self, le):
        samples = the_engine(ttft=[series(1, le=le), series(2, le="+Inf")])

        assert samples.ttft_within == {math.inf: 2}


class TestCacheInfo:
    @pytest.mark.parametrize(
        ("labels", "tokens", "blocks"),
        [
            ({"kv_cache_size_tokens": "70000", "num_gpu_blocks": "1"}, 70_000, 1),
            ({"kv_cache_size_tokens": "70000.5"}, 70_000.5, None),
            # Before 0.24 there are blocks alone, and their size is not that of the label beside.
            ({"num_gpu_blocks": "1000", "block_size": "16"}, None, 1000),
            ({"kv_cache_size_tokens": "None", "num_gpu_blocks": "10"}, None, 10),
            ({"kv_cache_size_tokens": "0", "num_gpu_blocks": "None"}, None, None),
            ({"kv_cache_size_tokens": "-5", "num_gpu_blocks": "-5"}, None, None),
            ({"kv_cache_size_tokens": "nan", "num_gpu_blocks": "nan"}, None, None),
            ({"kv_cache_size_tokens": "inf", "num_gpu_blocks": "inf"}, None, None),
            ({"kv_cache_size_tokens": "many", "num_gpu_blocks": "many"}, None, None),
            ({}, None, None),
        ],
    )
    def test_gives_what_the_cache_holds(self, labels, tokens, blocks):
        samples = the_engine(cache=[series(1, **labels)])

        assert (samples.kv_tokens, samples.num_gpu_blocks) == (tokens, blocks)

    def test_takes_the_first_series_that_says(self):
        cache = [series(1, kv_cache_size_tokens="None"), series(1, kv_cache_size_tokens="5")]

        assert the_engine(cache=cache).kv_tokens == 5


class TestLengths:
    def lengths(self, **answers):
        return the_engine(**{f"{name}_60": [series(value)] for name, value in answers.items()})

    def test_are_of_requests_that_finished_and_of_those_that_started(self):
        samples = self.lengths(
            finished=2,
            finished_prompt_tokens=400,
            finished_output_tokens=50,
            started=3,
            started_prompt_tokens=600,
            computed_prompt_tokens=100,
        )

        assert samples.lengths[60] == LengthWindow(
            finished_per_s=2,
            finished_prompt_tokens_per_s=400,
            finished_output_tokens_per_s=50,
            started_per_s=3,
            started_prompt_tokens_per_s=600,
            computed_prompt_tokens_per_s=100,
        )
        assert samples.lengths[8] == LengthWindow()

    def test_of_an_engine_before_0_16_are_without_the_hits_of_its_cache(self):
        samples = self.lengths(started_prompt_tokens=600, cached_prompt_tokens=450)

        assert samples.lengths[60].computed_prompt_tokens_per_s == 150

    def test_what_the_engine_says_it_computed_stands_above_the_hits(self):
        # External caches and preempted prompts are in one of the figures alone.
        samples = self.lengths(
            started_prompt_tokens=600, computed_prompt_tokens=500, cached_prompt_tokens=450
        )

        assert samples.lengths[60].computed_prompt_tokens_per_s == 500

    def test_nothing_counts_as_cached_where_the_engine_does_not_say(self):
        window = self.lengths(started_prompt_tokens=600).lengths[60]

        assert window.computed_prompt_tokens_per_s == 600

    def test_more_hits_than_prompts_leave_nothing_to_compute(self):
        samples = self.lengths(started_prompt_tokens=600, cached_prompt_tokens=700)

        assert samples.lengths[60].computed_prompt_tokens_per_s == 0

    def test_what_a_busy_engine_computes_is_of_the_window_of_its_steps(self):
        samples = the_engine(
            computed_prompt_tokens_4=[series(700)], computed_prompt_tokens_8=[series(100)]
        )

        assert samples.computed_prompt_tokens_per_s == 700


class TestGpus:
    def active(self, *values, **labels):
        place = {"namespace": "serving", "pod": "a"} | labels
        return [
            Series(labels=place | {"UUID": f"GPU-{number}"}, value=value, evaluated_at_s=NOW_S)
            for number, value in enumerate(values)
        ]

    def test_are_averaged_over_those_of_a_pod_and_told_with_its_first_engine(self):
        found = joined(
            running=[series(1, engine="1"), series(2, engine="0")],
            dram_active=self.active(0.2, 0.6),
        )

        told = {each.engine: each.dram_active_fraction for each in found.engines["serving", "a"]}
        assert told == {"0": pytest.approx(0.4), "1": None}

    def test_of_pods_that_are_no_engines_make_none(self):
        assert joined(dram_active=self.active(0.5)).engines == {}

    def test_one_that_cannot_be_makes_the_mean_missing(self):
        samples = the_engine(running=[series(1)], dram_active=self.active(0.5, 1.7))

        assert samples.dram_active_fraction is None


class TestEnginesOfAPod:
    def test_are_at_most_64_and_the_rest_is_told(self):
        found = joined(running=[series(1, engine=str(number)) for number in range(100)])

        kept = [each.engine for each in found.engines["serving", "a"]]
        assert kept == [str(number) for number in range(64)]
        assert found.dropped_engines == {("serving", "a"): 36}

    def test_of_others_are_all_there(self):
        many = [series(1, engine=str(number)) for number in range(100)]

        found = joined(running=[*many, series(1, pod="b")])

        assert len(found.engines["serving", "b"]) == 1
        assert list(found.dropped_engines) == [("serving", "a")]

    def test_come_first_whatever_names_are_invented(self):
        invented = [series(1, engine=f"x{number}") for number in range(100)]

        found = joined(running=[*invented, series(7, engine="0")])

        assert found.engines["serving", "a"][0].running == 7

    def test_as_many_as_there_may_be_are_all_kept(self):
        found = joined(running=[series(1, engine=str(number)) for number in range(64)])

        assert len(found.engines["serving", "a"]) == 64
        assert found.dropped_engines == {}


class TestWhereATickAgoIsKnown:
    """Of pods that say the same only the newest scrape is read, and it comes to the same."""

    PLACES = (
        *({"namespace": "serving", "pod": pod, "engine": rank} for pod in "ab" for rank in "01"),
        {"namespace": "other", "pod": "a", "engine": "0"},
        {"namespace": "serving", "pod": "a"},
        {"namespace": "serving", "pod": "a", "engine": "0", "le": "+Inf"},
        {"namespace": "serving", "pod": "b", "UUID": "GPU-1"},
        {"pod": "a"},
    )
    QUERIES = ("timestamp", "running", "waiting", "completed", "rejected", "queued", "ttft")
    SAID = st.dictionaries(
        st.sampled_from([*QUERIES, "completions_8", "falls", "dram_active"]),
        st.dictionaries(st.sampled_from(range(len(PLACES))), st.sampled_from([0.0, 0.5, 7.0])),
    )

    def answers(self, said, at_s):
        return {
            name: Vector(
                tuple(self.PLACES[place] for place in found),
                array("d", found.values()),
                array("d", [at_s] * len(found)),
            )
            for name, found in said.items()
        }

    @given(st.lists(SAID, min_size=1, max_size=3), st.data())
    def test_the_figures_are_those_of_this_tick_alone(self, ticks, data):
        before = None
        for number in range(6):
            said = data.draw(st.sampled_from(ticks))
            answers = self.answers(said, NOW_S + 15 * number)

            before = join(answers, SETTINGS, before)

            assert before == join(answers, SETTINGS)

    def test_only_the_newest_scrape_is_read_of_engines_that_say_the_same(self):
        said = {name: {0: 1.0, 2: 1.0} for name in self.QUERIES}
        before = join(self.answers(said, NOW_S), SETTINGS)
        said |= {"waiting": {0: 1.0, 2: 4.0}, "completed": {0: 9.0, 2: 9.0}}

        after = join(self.answers(said, NOW_S + 15), SETTINGS, before)

        [same], [same_before] = (each.engines["serving", "a"] for each in (after, before))
        [other], [other_before] = (each.engines["serving", "b"] for each in (after, before))
        assert same.arrivals is same_before.arrivals
        assert (same.arrived, same.age_s) == (12, same_before.age_s + 15)
        assert other.arrivals is not other_before.arrivals
        assert other.waiting == 4
