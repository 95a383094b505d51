"""The queries as text."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.estimate.metrics import (
    BUCKETS,
    COLUMNS,
    DECIDING,
    LATENCY_BOUNDS_S,
    PROMPT_BOUNDS,
    QUERIES,
    QUEUE_BOUNDS_S,
    TPOT_BOUNDS_S,
    TTFT_BOUNDS_S,
    bounds_near,
    column_of,
    judged_bounds,
    prometheus_duration,
    queries,
)
from tonnage.settings import Settings
from tonnage_lab.emulator.buckets import DEFAULTS, one_two_five

SETTINGS = Settings(prometheus_url="http://prometheus.test:9090")
SELECTED = Settings(
    prometheus_url="http://prometheus.test:9090",
    prometheus_selector='cluster="eu-1"',
    pod_label="kubernetes_pod_name",
    namespace_label="exported_namespace",
    dcgm_pod_label="pod",
    dcgm_namespace_label="namespace",
    scrape_interval_s=7.5,
)
GAP, OLD_GAP = "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"
LONG = (
    "vllm:num_requests_running|vllm:num_requests_waiting|vllm:request_success_total"
    "|vllm:admission_rejections_total|vllm:request_generation_tokens_count"
    "|vllm:request_prompt_tokens_sum|vllm:request_generation_tokens_sum"
    "|vllm:time_to_first_token_seconds_count|vllm:prompt_tokens_total"
    "|vllm:prompt_tokens_by_source_total|vllm:prefix_cache_hits_total"
    "|vllm:gpu_prefix_cache_hits_total"
)
SHORT = (
    "|vllm:num_requests_waiting_by_reason|vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc"
    f"|{GAP}_sum|{OLD_GAP}_sum|{GAP}_count|{OLD_GAP}_count"
    "|vllm:request_prefill_time_seconds_sum|vllm:request_prefill_time_seconds_count"
    "|vllm:time_to_first_token_seconds_sum"
    "|vllm:request_queue_time_seconds_sum|vllm:request_queue_time_seconds_count"
    "|vllm:num_preemptions_total|vllm:estimated_read_bytes_per_gpu_total"
    "|vllm:estimated_write_bytes_per_gpu_total|vllm:cache_config_info"
)
BUCKET_NAMES = (
    "vllm:num_requests_running|vllm:time_to_first_token_seconds_bucket"
    "|vllm:request_time_per_output_token_seconds_bucket"
    "|vllm:request_queue_time_seconds_bucket|vllm:request_prompt_tokens_bucket"
)
LIMITS = "0[.]05|0[.]8|1[.]0|1[.]5|2[.]0|2[.]5"
PROMPTS = "|".join(f"{lead}{zeros}[.]0" for zeros in ("000", "0000", "00000") for lead in (1, 2, 5))
GOLDEN = {
    "scrapes": f'{{__name__=~"{LONG}{SHORT}"}}[60s]',
    "latencies": (f'{{__name__=~"{BUCKET_NAMES}",le=~"{LIMITS}|{PROMPTS}|[+]Inf|"}}[60s]'),
    "gpus": '{__name__=~"DCGM_FI_PROF_DRAM_ACTIVE",namespace=~"gpu-operator"}[60s]',
}


def asked(settings=SETTINGS, **more):
    return queries(settings, ttft_limits_s=[2], tpot_limits_s=[0.05], **more)


class TestQueries:
    def test_are_these(self):
        assert asked() == GOLDEN
        assert tuple(asked()) == QUERIES
        assert set(DECIDING) <= set(QUERIES)

    def test_at_the_start_ask_for_a_quarter_of_an_hour_too(self):
        found = asked(has_history=True)

        assert found["history"] == f'{{__name__=~"{LONG}"}}[915s]'
        assert found["scrapes"] == GOLDEN["scrapes"]
        assert found["latencies"].endswith("[135s]")

    def test_hold_the_administrators_selector_labels_and_interval(self):
        found = asked(SELECTED, namespaces=["blue", "green"])

        assert found["scrapes"].endswith(
            ',cluster="eu-1",exported_namespace=~"blue|green"}[37500ms]'
        )
        assert found["gpus"] == (
            '{__name__=~"DCGM_FI_PROF_DRAM_ACTIVE",cluster="eu-1",namespace=~"blue|green"}[37500ms]'
        )

    @pytest.mark.parametrize(
        ("namespaces", "selector"),
        [
            (("gpu-operator",), ',namespace=~"gpu-operator"}'),
            (("gpu-operator", "monitoring"), ',namespace=~"gpu-operator|monitoring"}'),
            ((), "}"),
        ],
    )
    def test_of_gpus_are_believed_of_the_exporters_namespaces_alone(self, namespaces, selector):
        settings = SETTINGS.model_copy(update={"dcgm_namespaces": namespaces})

        found = asked(settings)["gpus"]
        assert found == f'{{__name__=~"DCGM_FI_PROF_DRAM_ACTIVE"{selector}[60s]'

    @pytest.mark.parametrize(
        ("scrape_interval_s", "tick_s", "window"),
        [(15, 15, "60s"), (5, 60, "75s"), (0.3, 1, "1900ms"), (86_400, 15, "259215s")],
    )
    def test_reach_back_three_scrapes_and_a_tick(self, scrape_interval_s, tick_s, window):
        more = {"scrape_interval_s": scrape_interval_s, "tick_s": tick_s}

        assert asked(SETTINGS.model_copy(update=more))["scrapes"].endswith(f"[{window}]")

    @pytest.mark.parametrize("settings", [SETTINGS, SELECTED], ids=["plain", "selected"])
    @pytest.mark.parametrize("name", [*QUERIES, "history"])
    def test_are_promql_of_raw_samples(self, name, settings):
        promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")

        parsed = promql.parse(asked(settings, namespaces=["blue"], has_history=True)[name])

        assert isinstance(parsed, promql.MatrixSelector)


@pytest.mark.parametrize(
    ("duration_s", "text"), [(0.0001, "1ms"), (0.0014, "1ms"), (0.0026, "3ms")]
)
def test_no_window_is_shorter_than_a_millisecond(duration_s, text):
    assert prometheus_duration(duration_s) == text


class TestBounds:
    @pytest.mark.parametrize(
        ("ttft_s", "tpot_s", "bounds_s"),
        [
            ([], [], []),
            # 2 s is a bound of ours; around it the engine's own ladder has 1 s and 2.5 s.
            ([2], [], [1, 2, 2.5]),
            ([0.0005], [], [0.001]),
            ([3600], [], [300, 2560]),
            # The engine has 0.3 s for TPOT, and nothing between 0.25 s and 0.5 s for TTFT.
            ([0.35], [], [0.25, 0.3, 0.4, 0.5]),
            ([], [0.06], [0.05, 0.06, 0.075]),
            ([0.06], [], [0.06]),
        ],
    )
    def test_next_to_the_limits_are_asked_for(self, ttft_s, tpot_s, bounds_s):
        assert bounds_near(ttft_s, tpot_s) == bounds_s

    @given(limit_s=st.floats(0.001, 3600))
    def test_hold_the_limit_between_them_in_both_ladders(self, limit_s):
        for found, own in (
            (bounds_near([limit_s], []), TTFT_BOUNDS_S),
            (bounds_near([], [limit_s]), TPOT_BOUNDS_S),
        ):
            for ladder in (LATENCY_BOUNDS_S, own):
                below = [bound for bound in ladder if bound <= limit_s]
                above = [bound for bound in ladder if bound >= limit_s]
                assert set(below[-1:] + above[:1]) <= set(found)

    @pytest.mark.parametrize(
        ("ttft_s", "tpot_s", "queue_s"),
        [
            ([], [], []),
            ([], [0.06], []),
            ([0.4], [], [0.3]),
            ([0.05], [], []),
            # A prompt takes its time too: who waits for a part of a limit may be late.
            ([2], [], [0.8, 1, 1.5]),
            ([2.6], [], [1.5, 2, 2.5]),
            ([3], [], [1.5, 2, 2.5]),
            ([20_000], [], [960, 1920, 7680]),
        ],
    )
    def test_of_queues_and_prompts_are_asked_for_where_a_first_token_is_judged(
        self, ttft_s, tpot_s, queue_s
    ):
        prompts = PROMPT_BOUNDS if ttft_s else ()

        assert judged_bounds(ttft_s, tpot_s) == sorted(
            {*bounds_near(ttft_s, tpot_s), *queue_s, *prompts}
        )

    @given(limit_s=st.floats(0.001, 3600))
    def test_that_judge_hold_those_next_to_the_limits(self, limit_s):
        assert set(bounds_near([limit_s], [])) < set(judged_bounds([limit_s], []))
        assert bounds_near([], [limit_s]) == judged_bounds([], [limit_s])

    def test_match_the_whole_bound_only_and_what_has_none(self):
        pattern = re.compile(re.search(r'le=~"([^"]*)"', asked()["latencies"])[1])

        texts = ("2.0", "+Inf", "20.0", "2x0", "12.0", "")
        assert [text for text in texts if pattern.fullmatch(text)] == ["2.0", "+Inf", ""]


class TestLadders:
    def test_of_the_engine_are_those_that_the_emulated_one_shows(self):
        assert tuple(DEFAULTS["time_to_first_token"]) == TTFT_BOUNDS_S
        assert tuple(DEFAULTS["inter_token_latency"]) == TPOT_BOUNDS_S
        assert tuple(DEFAULTS["request_latency"]) == QUEUE_BOUNDS_S
        assert {each for each in one_two_five(999_999) if each >= 1000} == set(PROMPT_BOUNDS)

    def test_of_ours_has_a_bound_near_every_limit_from_a_millisecond_to_five_minutes(self):
        ratios = [high / low for low, high in pairwise(LATENCY_BOUNDS_S)]

        assert (LATENCY_BOUNDS_S[0], LATENCY_BOUNDS_S[-1]) == (0.001, 300)
        assert min(ratios) > 1.1
        assert max(ratios) <= 2.5


class TestColumns:
    def test_of_a_metric_are_one_for_each_value_of_its_own_label(self):
        metric = {"__name__": "vllm:num_requests_waiting_by_reason"}

        found = [column_of(metric | {"reason": each}) for each in ("capacity", "deferred", "x")]

        assert [each and COLUMNS[each[0]].name for each in found] == ["waiting", "deferred", None]

    def test_hold_no_metric_twice(self):
        named = [(metric, column.own) for column in COLUMNS for metric in column.metrics]

        assert len(named) == len(set(named))
        assert not {metric for metric, _ in named} & BUCKETS.keys()

    @pytest.mark.parametrize(
        ("newer", "older"),
        [
            ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
            (f"{GAP}_sum", f"{OLD_GAP}_sum"),
            (f"{GAP}_count", f"{OLD_GAP}_count"),
        ],
    )
    def test_are_the_same_in_older_engines(self, newer, older):
        assert column_of({"__name__": newer}) == column_of({"__name__": older})


OTHERS = Settings(
    prometheus_url="http://prometheus.test:9090",
    other_series={
        "prefixes": ["kserve_"],
        "labels": [{"namespace": "kubernetes_namespace", "pod": "kubernetes_pod_name"}],
    },
)


def test_series_that_a_monitor_renamed_are_asked_for_beside_the_others():
    # KServe's PodMonitor kserve-llm-isvc-vllm-engine puts kserve_ before each name.
    found = queries(OTHERS, ttft_limits_s=[2.0], tpot_limits_s=[0.05])
    renamed = f"{LONG}{SHORT}".replace("vllm:", "kserve_vllm:")

    assert found["scrapes"] == f'{{__name__=~"{LONG}{SHORT}|{renamed}"}}[60s]'
    assert found["gpus"] == GOLDEN["gpus"]


def test_some_namespaces_are_asked_for_by_each_of_their_labels():
    found = queries(OTHERS, ttft_limits_s=[2.0], tpot_limits_s=[0.05], namespaces=["blue", "red"])

    assert found["scrapes"].endswith(
        ',namespace=~"blue|red|",kubernetes_namespace=~"blue|red|"}[60s]'
    )
    assert found["gpus"].endswith(',exported_namespace=~"blue|red"}[60s]')
