"""What is made of the answers: figures of one engine, or none."""

import math

import pytest

from tonnage.estimate.samples import Series, join
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
            running_growth=[series(-0.5)],
            waiting_growth=[series(0.25)],
            completions=[series(1, finished_reason="stop"), series(2, finished_reason="length")],
            ttft=[series(1, le="2.0"), series(4, le="+Inf")],
        )

        assert (samples.pod, samples.engine) == ("a", "0")
        assert samples.age_s == 7
        assert (samples.running, samples.waiting) == (3, 2)
        assert samples.backlog_growth_per_s == -0.25
        assert samples.completions_per_s == 3
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
            running=[series(1e15)], waiting=[series(1.01e15)], ttft=[series(1e15, le="1.0")]
        )

        assert (samples.running, samples.waiting) == (1e15, None)
        assert samples.ttft_within == {1.0: 1e15}

    def test_leaves_what_was_not_answered_missing(self):
        samples = the_engine(running=[series(0)])

        assert samples.running == 0
        assert samples.waiting is None
        assert samples.age_s is None
        assert samples.kv_tokens is None
        assert samples.ttft_within == {}

    def test_growth_of_one_queue_alone_is_not_the_growth_of_both(self):
        assert the_engine(running_growth=[series(1)]).backlog_growth_per_s is None

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
            completions=[series(1, engine="0"), series(1, engine="1")],
            rejections=[series(5, engine=None, reason="max_num_queued_reqs")],
        ).engines["serving", "a"]
        old = joined(completions=[series(1, engine=None)]).engines["serving", "a"]

        assert [each.rejections_per_s for each in ranks] == [5, None]
        assert [each.completions_per_s for each in old] == [1]

    def test_drops_series_of_nobody(self):
        found = joined(running=[series(1, pod=None), series(1, namespace=None)])

        assert found.engines == {}

    def test_reads_the_labels_that_the_administrator_names(self):
        labels = {"exported_namespace": "serving", "kubernetes_pod_name": "a", "engine": "0"}
        answer = [Series(labels=labels, value=1, evaluated_at_s=NOW_S)]

        assert joined(RELABELED, running=answer).engines["serving", "a"][0].running == 1

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e308])
    @pytest.mark.parametrize("name", ["running", "completions", "kv_usage", "ttft"])
    def test_a_value_that_cannot_be_is_missing(self, name, value):
        samples = the_engine(**{name: [series(value, le="2.0")]}, waiting=[series(1)])

        figures = (samples.running, samples.completions_per_s, samples.kv_usage_fraction)
        assert figures == (None, None, None)
        assert samples.ttft_within == {}

    @pytest.mark.parametrize("value", [math.nan, math.inf, -1e308])
    def test_a_growth_that_cannot_be_is_missing(self, value):
        samples = the_engine(running_growth=[series(value)], waiting_growth=[series(1)])

        assert samples.backlog_growth_per_s is None

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
    ANSWERS = ("finished", "finished_prompt_tokens", "finished_output_tokens")

    def long(self, **answers):
        [samples] = joined(**answers).long["serving", "a"]
        return samples

    def test_are_of_the_requests_that_finished(self):
        samples = self.long(
            finished=[series(2)],
            finished_prompt_tokens=[series(400)],
            finished_output_tokens=[series(50)],
            long_prompt_tokens=[series(500)],
            long_computed_tokens=[series(100)],
        )

        assert samples.requests_per_s == 2
        assert samples.prompt_tokens_per_s == 400
        assert samples.output_tokens_per_s == 50
        assert samples.started_prompt_tokens_per_s == 500
        assert samples.computed_prompt_tokens_per_s == 100

    @pytest.mark.parametrize("missing", ANSWERS)
    def test_are_missing_when_one_counter_is(self, missing):
        answers = {name: [series(1)] for name in self.ANSWERS if name != missing}

        assert joined(**answers).long["serving", "a"] == ()

    def test_nothing_counts_as_cached_where_the_engine_does_not_say(self):
        answers = {name: [series(1)] for name in self.ANSWERS}

        assert self.long(**answers).started_prompt_tokens_per_s == 0
        assert self.long(**answers).computed_prompt_tokens_per_s == 0

        samples = self.long(**answers, long_prompt_tokens=[series(500)])

        assert samples.computed_prompt_tokens_per_s == 500
