"""The queries as text."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.estimate.metrics import (
    DEFAULT_BOUNDS_S,
    LATENCY_BOUNDS_S,
    TABLE,
    bucket_matcher,
    expression,
    prometheus_duration,
    queries,
)
from tonnage.settings import Settings

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


@pytest.mark.parametrize(
    ("duration_s", "text"), [(0.0001, "1ms"), (0.0014, "1ms"), (0.0026, "3ms")]
)
def test_no_window_is_shorter_than_a_millisecond(duration_s, text):
    assert prometheus_duration(duration_s) == text


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


class TestLadders:
    def test_of_the_engine_are_those_of_its_two_families(self):
        # vllm/v1/metrics/loggers.py
        ttft_s = (
            0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
            10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
        )  # fmt: skip
        tpot_s = (
            0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
            10.0, 20.0, 40.0, 80.0,
        )  # fmt: skip

        assert tuple(sorted({*ttft_s, *tpot_s})) == DEFAULT_BOUNDS_S

    def test_of_ours_has_a_bound_near_every_limit_from_a_millisecond_to_five_minutes(self):
        ratios = [high / low for low, high in pairwise(LATENCY_BOUNDS_S)]

        assert (LATENCY_BOUNDS_S[0], LATENCY_BOUNDS_S[-1]) == (0.001, 300)
        assert min(ratios) > 1.1
        assert max(ratios) <= 2.5


def test_histograms_are_asked_only_for_the_bounds_next_to_a_limit():
    asked = queries(SETTINGS, ttft_limits_s=[2], tpot_limits_s=[0.05])

    assert list(asked) == list(TABLE)
    assert [text for text in asked.values() if "bucket" in text] == [
        "max by (namespace, pod, engine, le) (rate(vllm:time_to_first_token_seconds_bucket"
        '{le=~"1[.]0|2[.]0|2[.]5|[+]Inf"}[120s]))',
        "max by (namespace, pod, engine, le) "
        "(rate(vllm:request_time_per_output_token_seconds_bucket"
        '{le=~"0[.]05|[+]Inf"}[120s]))',
    ]
