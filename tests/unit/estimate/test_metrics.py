"""The queries as text."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.estimate.metrics import (
    DECIDING,
    LATENCY_BOUNDS_S,
    TABLE,
    TPOT_BOUNDS_S,
    TTFT_BOUNDS_S,
    WINDOWS,
    bucket_matcher,
    expression,
    prometheus_duration,
    queries,
)
from tonnage.settings import Settings
from tonnage_lab.emulator.buckets import DEFAULTS

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
BY = "(namespace, pod, engine)"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
GAP, OLD_GAP = "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"
SOURCE = "vllm:prompt_tokens_by_source_total"
TTFT, PREFILL = "vllm:time_to_first_token_seconds", "vllm:request_prefill_time_seconds"
TPOT = "vllm:request_time_per_output_token_seconds"
GENERATED = "vllm:request_generation_tokens"
HITS = "vllm:prefix_cache_hits_total"


def rate(metric, window, *own):
    by = f"({', '.join(('namespace', 'pod', 'engine', *own))})"
    return f"max by {by} (rate({metric}[{window}]))"


def arrivals(scrapes, window):
    return {
        f"completions_{scrapes}": rate("vllm:request_success_total", window, "finished_reason"),
        f"running_growth_{scrapes}": f"max by {BY} (delta({RUNNING}[{window}]))",
        f"waiting_growth_{scrapes}": f"max by {BY} (delta({WAITING}[{window}]))",
        f"rejections_{scrapes}": rate("vllm:admission_rejections_total", window, "reason"),
    }


def lengths(scrapes, window):
    return {
        f"finished_{scrapes}": rate(f"{GENERATED}_count", window),
        f"finished_prompt_tokens_{scrapes}": rate("vllm:request_prompt_tokens_sum", window),
        f"finished_output_tokens_{scrapes}": rate(f"{GENERATED}_sum", window),
        f"started_{scrapes}": rate(f"{TTFT}_count", window),
        f"started_prompt_tokens_{scrapes}": rate("vllm:prompt_tokens_total", window),
        f"computed_prompt_tokens_{scrapes}": rate(SOURCE + '{source="local_compute"}', window),
        f"cached_prompt_tokens_{scrapes}": (
            f"{rate(HITS, window)} or {rate('vllm:gpu_prefix_cache_hits_total', window)}"
        ),
    }


GOLDEN = {
    "timestamp": f"max by {BY} (timestamp({RUNNING}))",
    "running": f"max by {BY} (last_over_time({RUNNING}[45s]))",
    "waiting": f'max by {BY} (last_over_time({WAITING}_by_reason{{reason="capacity"}}[45s])) '
    f"or max by {BY} (last_over_time({WAITING}[45s]))",
    "completed": "max by (namespace, pod, engine, finished_reason) (vllm:request_success_total)",
    "rejected": "max by (namespace, pod, engine, reason) (vllm:admission_rejections_total)",
    "queued": f"max by {BY} ({WAITING})",
    "falls": f"max by {BY} (resets(vllm:iteration_tokens_total_count[915s]))",
    "scrapes": f"max by {BY} (count_over_time({RUNNING}[900s]))",
    "cache": "group by (namespace, pod, engine, kv_cache_size_tokens, num_gpu_blocks) "
    "(vllm:cache_config_info)",
    **arrivals(4, "60s"),
    **arrivals(8, "120s"),
    **arrivals(20, "300s"),
    **arrivals(60, "900s"),
    "mean_running": f"max by {BY} (avg_over_time({RUNNING}[60s]))",
    "kv_usage": f"max by {BY} (avg_over_time(vllm:kv_cache_usage_perc[60s])) "
    f"or max by {BY} (avg_over_time(vllm:gpu_cache_usage_perc[60s]))",
    "token_gap_s": f"{rate(GAP + '_sum', '60s')} or {rate(OLD_GAP + '_sum', '60s')}",
    "token_gaps": f"{rate(GAP + '_count', '60s')} or {rate(OLD_GAP + '_count', '60s')}",
    "resets": f"max by {BY} (resets(vllm:iteration_tokens_total_count[75s]))",
    "prefill_s": rate(f"{PREFILL}_sum", "60s"),
    "prefills": rate(f"{PREFILL}_count", "60s"),
    **lengths(4, "60s"),
    "preemptions": rate("vllm:num_preemptions_total", "60s"),
    **lengths(8, "120s"),
    **lengths(60, "900s"),
    "ttft": rate(f"{TTFT}_bucket", "120s", "le"),
    "tpot": rate(f"{TPOT}_bucket", "120s", "le"),
    "deferred": f'max by {BY} (avg_over_time({WAITING}_by_reason{{reason="deferred"}}[120s]))',
    "moved_prompt_tokens": rate(SOURCE + '{source="external_kv_transfer"}', "60s"),
    "read_bytes": rate("vllm:estimated_read_bytes_per_gpu_total", "60s"),
    "write_bytes": rate("vllm:estimated_write_bytes_per_gpu_total", "60s"),
    "dram_active": "max by (namespace, pod, UUID, GPU_I_ID) (label_replace(label_replace("
    'avg_over_time(DCGM_FI_PROF_DRAM_ACTIVE{namespace=~"gpu-operator"}[60s]), "namespace", "$1", '
    '"exported_namespace", "(.*)"), "pod", "$1", "exported_pod", "(.*)"))',
}
SELECTED = Settings(
    prometheus_url="http://prometheus.test:9090",
    prometheus_selector='cluster="eu-1"',
    pod_label="kubernetes_pod_name",
    namespace_label="exported_namespace",
    dcgm_pod_label="pod",
    dcgm_namespace_label="namespace",
    scrape_interval_s=7.5,
)


class TestExpressions:
    def test_are_these(self):
        assert {name: expression(query, SETTINGS) for name, query in TABLE.items()} == GOLDEN

    def test_hold_the_administrators_selector_labels_and_interval(self):
        assert expression(TABLE["computed_prompt_tokens_8"], SELECTED) == (
            "max by (exported_namespace, kubernetes_pod_name, engine) "
            f'(rate({SOURCE}{{cluster="eu-1",source="local_compute"}}[60s]))'
        )
        assert expression(TABLE["running"], SELECTED) == (
            "max by (exported_namespace, kubernetes_pod_name, engine) "
            f'(last_over_time({RUNNING}{{cluster="eu-1"}}[22500ms]))'
        )

    def test_of_gpus_come_under_the_labels_of_engines(self):
        assert expression(TABLE["dram_active"], SELECTED) == (
            "max by (exported_namespace, kubernetes_pod_name, UUID, GPU_I_ID) "
            "(label_replace(label_replace("
            'avg_over_time(DCGM_FI_PROF_DRAM_ACTIVE{cluster="eu-1"}[30s]), '
            '"exported_namespace", "$1", "namespace", "(.*)"), '
            '"kubernetes_pod_name", "$1", "pod", "(.*)"))'
        )

    @pytest.mark.parametrize(
        ("namespaces", "selector"),
        [
            (("gpu-operator",), '{namespace=~"gpu-operator"}'),
            (("gpu-operator", "monitoring"), '{namespace=~"gpu-operator|monitoring"}'),
            ((), ""),
        ],
    )
    def test_of_gpus_are_believed_of_the_exporters_namespaces_alone(self, namespaces, selector):
        settings = SETTINGS.model_copy(update={"dcgm_namespaces": namespaces})

        asked = expression(TABLE["dram_active"], settings)
        assert f"DCGM_FI_PROF_DRAM_ACTIVE{selector}[60s]" in asked

    def test_may_be_about_some_namespaces_alone(self):
        asked = queries(SELECTED, ttft_limits_s=(), tpot_limits_s=(), namespaces=["blue", "green"])

        assert asked["running"] == (
            "max by (exported_namespace, kubernetes_pod_name, engine) "
            f'(last_over_time({RUNNING}{{cluster="eu-1",exported_namespace=~"blue|green"}}[22500ms]))'
        )
        assert 'namespace=~"blue|green"' in asked["dram_active"]

    @pytest.mark.parametrize(
        ("scrape_interval_s", "window"), [(15, "60s"), (0.3, "1200ms"), (86_400, "345600s")]
    )
    def test_have_windows_that_prometheus_can_read(self, scrape_interval_s, window):
        settings = SETTINGS.model_copy(update={"scrape_interval_s": scrape_interval_s})

        assert f"[{window}]" in expression(TABLE["preemptions"], settings)

    @pytest.mark.parametrize("settings", [SETTINGS, SELECTED], ids=["plain", "selected"])
    @pytest.mark.parametrize("name", TABLE)
    def test_are_promql_that_keeps_no_label_but_those_that_are_read(self, name, settings):
        promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")
        place = [settings.namespace_label, settings.pod_label]
        engine = [] if TABLE[name].is_of_gpu else ["engine"]
        labels = [*place, *engine, *TABLE[name].own_labels]

        text = expression(TABLE[name], settings, le_matcher=bucket_matcher([0.05], TPOT_BOUNDS_S))

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
            # 2 s is a bound of ours; around it the engine's own ladder has 1 s and 2.5 s.
            ([2], 'le=~"1[.]0|2[.]0|2[.]5|[+]Inf"'),
            ([0.0005], 'le=~"0[.]001|[+]Inf"'),
            ([3600], 'le=~"300[.]0|2560[.]0|[+]Inf"'),
            # The engine has 0.3 s for TPOT, and nothing between 0.25 s and 0.5 s for TTFT.
            ([0.35], 'le=~"0[.]25|0[.]3|0[.]4|0[.]5|[+]Inf"'),
        ],
    )
    def test_next_to_the_limits_are_asked_for_and_the_total(self, limits_s, matcher):
        assert bucket_matcher(limits_s, TTFT_BOUNDS_S) == matcher

    def test_are_those_of_the_histogram_that_is_asked(self):
        assert bucket_matcher([0.06], TPOT_BOUNDS_S) == 'le=~"0[.]05|0[.]06|0[.]075|[+]Inf"'
        assert bucket_matcher([0.06], TTFT_BOUNDS_S) == 'le=~"0[.]06|[+]Inf"'

    @pytest.mark.parametrize("own_bounds_s", [TTFT_BOUNDS_S, TPOT_BOUNDS_S], ids=["ttft", "tpot"])
    @given(limit_s=st.floats(0.001, 3600))
    def test_hold_the_limit_between_them_in_both_ladders(self, own_bounds_s, limit_s):
        matcher = bucket_matcher([limit_s], own_bounds_s)
        pattern = re.compile(matcher.removeprefix('le=~"').removesuffix('"'))

        for ladder in (LATENCY_BOUNDS_S, own_bounds_s):
            asked = [bound for bound in ladder if pattern.fullmatch(str(bound))]
            below = [bound for bound in ladder if bound <= limit_s]
            above = [bound for bound in ladder if bound >= limit_s]
            assert set(below[-1:] + above[:1]) <= set(asked)

    def test_match_the_whole_bound_only(self):
        matcher = bucket_matcher([2], TTFT_BOUNDS_S)
        pattern = re.compile(matcher.removeprefix('le=~"').removesuffix('"'))

        matched = [
            text for text in ("2.0", "+Inf", "20.0", "2x0", "12.0") if pattern.fullmatch(text)
        ]
        assert matched == ["2.0", "+Inf"]


class TestLadders:
    def test_of_the_engine_are_those_that_the_emulated_one_shows(self):
        assert tuple(DEFAULTS["time_to_first_token"]) == TTFT_BOUNDS_S
        assert tuple(DEFAULTS["inter_token_latency"]) == TPOT_BOUNDS_S

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


class TestDecisions:
    def test_rest_on_all_but_what_checks_the_engine_from_outside(self):
        shown = [name for name, query in TABLE.items() if not query.decides]

        assert shown == ["read_bytes", "write_bytes", "dram_active"]

    def test_rest_on_the_shortest_window(self):
        assert set(DECIDING) == {"timestamp", "waiting", *arrivals(4, "60s")}

    def test_take_no_negative_value_but_of_the_growth_of_a_gauge(self):
        negative = [name for name, query in TABLE.items() if query.least < 0]

        assert negative == [
            f"{gauge}_growth_{scrapes}" for scrapes in WINDOWS for gauge in ("running", "waiting")
        ]

    def test_take_no_more_requests_than_an_engine_can_have(self):
        assert [name for name, query in TABLE.items() if query.largest == 10_000_000] == [
            "waiting",
            *(f"{gauge}_growth_{n}" for n in WINDOWS for gauge in ("running", "waiting")),
            "running",
            "queued",
            "mean_running",
            "deferred",
        ]

    def test_take_no_share_above_one(self):
        assert [name for name, query in TABLE.items() if query.largest == 1] == [
            "kv_usage",
            "dram_active",
        ]


def test_nothing_is_asked_twice():
    texts = list(GOLDEN.values())

    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("version", "gone", "there"),
    [
        ("0.8", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        ("0.8", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        ("0.10.1", f"{GAP}_sum", f"{OLD_GAP}_sum"),
        ("0.10.1", f"{GAP}_count", f"{OLD_GAP}_count"),
        ("0.19", f"{WAITING}_by_reason", WAITING),
    ],
)
def test_an_older_engine_is_asked_by_its_own_names(version, gone, there):
    asked = [query for name, query in TABLE.items() if query.metric == gone and name != "deferred"]

    assert {query.fallbacks for query in asked} == {(there,)}
