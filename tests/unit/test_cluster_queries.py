"""The queries as text, and what is made of their answers."""

import math
import re
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.cluster.prometheus import Series
from tonnage.cluster.queries import TABLE, bucket_matcher, expression, join, scrape
from tonnage.manifests.arguments import DEFAULT_BOUNDS_S, LATENCY_BOUNDS_S
from tonnage.settings import Settings

NOW_S = 1_000_000.0
SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
BY = "(namespace, pod, engine)"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
GAP, OLD_GAP = "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"
SOURCE = "vllm:prompt_tokens_by_source_total"
GOLDEN = {
    "timestamp": f"max by {BY} (timestamp({RUNNING}))",
    "running": f"max by {BY} ({RUNNING})",
    "waiting": f'max by {BY} ({WAITING}_by_reason{{reason="capacity"}}) or max by {BY} ({WAITING})',
    "mean_running": f"max by {BY} (avg_over_time({RUNNING}[60s]))",
    "running_growth": f"max by {BY} (deriv({RUNNING}[60s]))",
    "waiting_growth": f"max by {BY} (deriv({WAITING}[60s]))",
    "kv_usage": f"max by {BY} (avg_over_time(vllm:kv_cache_usage_perc[60s])) "
    f"or max by {BY} (avg_over_time(vllm:gpu_cache_usage_perc[60s]))",
    "completions": "max by (namespace, pod, engine, finished_reason) "
    "(rate(vllm:request_success_total[60s]))",
    "rejections": "max by (namespace, pod, engine, reason) "
    "(rate(vllm:admission_rejections_total[60s]))",
    "prompt_tokens": f"max by {BY} (rate(vllm:prompt_tokens_total[60s]))",
    "computed_prompt_tokens": f'max by {BY} (rate({SOURCE}{{source="local_compute"}}[60s]))',
    "output_tokens": f"max by {BY} (rate(vllm:generation_tokens_total[60s]))",
    "token_gap_s": f"max by {BY} (rate({GAP}_sum[60s])) or max by {BY} (rate({OLD_GAP}_sum[60s]))",
    "token_gaps": f"max by {BY} (rate({GAP}_count[60s])) "
    f"or max by {BY} (rate({OLD_GAP}_count[60s]))",
    "steps": f"max by {BY} (rate(vllm:iteration_tokens_total_count[60s]))",
    "preemptions": f"max by {BY} (rate(vllm:num_preemptions_total[60s]))",
    "cache": "group by (namespace, pod, engine, kv_cache_size_tokens, num_gpu_blocks) "
    "(vllm:cache_config_info)",
    "finished": f"max by {BY} (rate(vllm:request_prompt_tokens_count[900s]))",
    "finished_prompt_tokens": f"max by {BY} (rate(vllm:request_prompt_tokens_sum[900s]))",
    "finished_output_tokens": f"max by {BY} (rate(vllm:request_generation_tokens_sum[900s]))",
    "long_prompt_tokens": f"max by {BY} (rate(vllm:prompt_tokens_total[900s]))",
    "long_computed_tokens": f'max by {BY} (rate({SOURCE}{{source="local_compute"}}[900s]))',
    "ttft": "max by (namespace, pod, engine, le) "
    "(rate(vllm:time_to_first_token_seconds_bucket[120s]))",
    "tpot": "max by (namespace, pod, engine, le) "
    "(rate(vllm:request_time_per_output_token_seconds_bucket[120s]))",
}
SELECTED = Settings(
    prometheus_url="http://prometheus.test:9090",
    prometheus_selector='cluster="eu-1"',
    pod_label="kubernetes_pod_name",
    namespace_label="exported_namespace",
    scrape_interval_s=7.5,
)


class TestExpressions:
    def test_are_these(self):
        assert {name: expression(query, SETTINGS) for name, query in TABLE.items()} == GOLDEN

    def test_hold_the_administrators_selector_labels_and_interval(self):
        assert expression(TABLE["computed_prompt_tokens"], SELECTED) == (
            "max by (exported_namespace, kubernetes_pod_name, engine) "
            f'(rate({SOURCE}{{cluster="eu-1",source="local_compute"}}[30s]))'
        )
        assert expression(TABLE["running"], SELECTED) == (
            "max by (exported_namespace, kubernetes_pod_name, engine) "
            f'({RUNNING}{{cluster="eu-1"}})'
        )

    @pytest.mark.parametrize(
        ("scrape_interval_s", "window"), [(15, "60s"), (0.3, "1200ms"), (86_400, "345600s")]
    )
    def test_have_windows_that_prometheus_can_read(self, scrape_interval_s, window):
        settings = SETTINGS.model_copy(update={"scrape_interval_s": scrape_interval_s})

        assert f"[{window}]" in expression(TABLE["steps"], settings)

    @pytest.mark.parametrize("settings", [SETTINGS, SELECTED], ids=["plain", "selected"])
    @pytest.mark.parametrize("name", TABLE)
    def test_are_promql_that_keeps_no_label_but_those_that_are_read(self, name, settings):
        promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
        labels = [settings.namespace_label, settings.pod_label, "engine", *TABLE[name].own_labels]

        text = expression(TABLE[name], settings, le_matcher=bucket_matcher([0.05]))

        for part in alternatives(promql, promql.parse(text)):
            # Two Prometheus replicas deliver every series twice; a maximum does not mind.
            assert str(part.op) in {"max", "group"}
            assert part.modifier.type == promql.AggModifierType.By
            assert part.modifier.labels == labels


def alternatives(promql, parsed):
    if isinstance(parsed, promql.BinaryExpr):
        assert str(parsed.op) == "or"
        return [*alternatives(promql, parsed.lhs), *alternatives(promql, parsed.rhs)]
    assert isinstance(parsed, promql.AggregateExpr)
    return [parsed]


class TestBuckets:
    @pytest.mark.parametrize(
        ("limits_s", "matcher"),
        [
            ([], 'le=~"[+]Inf"'),
            ([0.05], 'le=~"0[.]05|[+]Inf"'),
            # 2 s is a bound of ours; around it the engine's own ladder has 1 s and 2.5 s.
            ([2], 'le=~"1[.]0|2[.]0|2[.]5|[+]Inf"'),
            ([0.05, 2], 'le=~"0[.]05|1[.]0|2[.]0|2[.]5|[+]Inf"'),
            ([0.0005], 'le=~"0[.]001|[+]Inf"'),
            ([3600], 'le=~"300[.]0|2560[.]0|[+]Inf"'),
        ],
    )
    def test_next_to_the_limits_are_asked_for_and_the_total(self, limits_s, matcher):
        assert bucket_matcher(limits_s) == matcher

    @given(st.floats(0.001, 3600))
    def test_hold_the_limit_between_them_in_both_ladders(self, limit_s):
        pattern = re.compile(bucket_matcher([limit_s]).removeprefix('le=~"').removesuffix('"'))

        for ladder in (LATENCY_BOUNDS_S, DEFAULT_BOUNDS_S):
            asked = [bound for bound in ladder if pattern.fullmatch(str(bound))]
            below = [bound for bound in ladder if bound <= limit_s]
            above = [bound for bound in ladder if bound >= limit_s]
            assert set(below[-1:] + above[:1]) <= set(asked)

    def test_match_the_whole_bound_only(self):
        pattern = re.compile(bucket_matcher([2]).removeprefix('le=~"').removesuffix('"'))

        matched = [
            text for text in ("2.0", "+Inf", "20.0", "2x0", "12.0") if pattern.fullmatch(text)
        ]
        assert matched == ["2.0", "+Inf"]


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

        assert joined(SELECTED, running=answer).engines["serving", "a"][0].running == 1

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

        samples = self.long(**answers, long_prompt_tokens=[series(500)])

        assert samples.computed_prompt_tokens_per_s == 500


def asked_for(answer, **limits):
    """The queries of one tick, answered in the same way each."""
    asked = []

    def ask(text):
        asked.append(text)
        return answer

    limits = {"ttft_limits_s": [2], "tpot_limits_s": [0.05]} | limits
    return asked, scrape(ask, SETTINGS, **limits)


class TestScrape:
    def test_asks_as_many_queries_for_a_fleet_as_for_one_pod(self):
        one, _ = asked_for([series(1)])
        many, _ = asked_for([series(1, pod=f"p{number}") for number in range(500)])

        assert one == many
        assert len(one) == len(TABLE)

    def test_asks_histograms_only_for_the_bounds_next_to_a_limit(self):
        asked, _ = asked_for([])

        assert [text for text in asked if "bucket" in text] == [
            "max by (namespace, pod, engine, le) (rate(vllm:time_to_first_token_seconds_bucket"
            '{le=~"1[.]0|2[.]0|2[.]5|[+]Inf"}[120s]))',
            "max by (namespace, pod, engine, le) "
            "(rate(vllm:request_time_per_output_token_seconds_bucket"
            '{le=~"0[.]05|[+]Inf"}[120s]))',
        ]

    def test_a_query_that_fails_leaves_no_half_answer(self):
        numbers = count()

        def ask(text):
            if next(numbers) == 10:
                raise ConnectionError
            return [series(1)]

        with pytest.raises(ConnectionError):
            scrape(ask, SETTINGS, ttft_limits_s=[], tpot_limits_s=[])

    @given(st.dictionaries(st.text(max_size=20), st.text(max_size=40), max_size=5), st.floats())
    def test_what_a_label_says_never_reaches_a_query(self, labels, value):
        hostile = Series(
            labels={"namespace": "n", "pod": 'x"} or vector(1) #', **labels},
            value=value,
            evaluated_at_s=NOW_S,
        )

        asked, _ = asked_for([hostile])

        assert asked == asked_for([])[0]
