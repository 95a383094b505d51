"""The scrapes of engines as rounds of questions bring them: windows, gaps, replicas, odd pages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page_builders import labels_of, take_page, take_series
from tonnage.estimate.demand import attainment, measure_demand
from tonnage.estimate.fleet_scrapes import MAX_ENGINES, Answered, FleetScrapes
from tonnage.estimate.metrics import FRESH_SCRAPES, PLACES
from tonnage.estimate.samples import fleet_samples
from tonnage.settings import Settings

POD = ("serving", "a")
BEGAN_S = 1_000_000.0
RATE = 2.0


def a_fleet_of(*pods, interval_s=15, **settings):
    known = Settings(
        prometheus_url="http://prometheus.test:9090", scrape_interval_s=interval_s, **settings
    )
    scrapes = FleetScrapes(known)
    scrapes.expect(frozenset(pods or [POD]))
    return scrapes


def a_page(ended, running=4, waiting=0):
    return {"running": running, "queued": waiting, "completed": ended, "started": ended + running}


def took(pages, each_s):
    """The same pages, which tell that each request that ended took so long."""
    return [
        (at_s, page | {"token_gap_s": 0.9 * each_s * page["completed"]}
         | {"prefill_s": 0.1 * each_s * page["completed"]})
        for at_s, page in pages
    ]  # fmt: skip


def a_round(scrapes, pages, *, pod=POD, **labels):
    """One answer with the samples of these scrapes: (time, page)."""
    answered = Answered()
    for name in dict.fromkeys(name for _, page in pages for name in page):
        samples = [(at_s, float(page[name])) for at_s, page in pages if name in page]
        take_series(scrapes, answered, labels_of(name, pod, **labels), samples)
    scrapes.add(answered)


def the_engine(scrapes, at_s, *, pod=POD):
    [found] = fleet_samples(scrapes, at_s)[pod]
    return found


def the_rate(scrapes, at_s):
    demand = measure_demand(
        fleet_samples(scrapes, at_s)[POD],
        ready_pods=frozenset("a"),
    )
    return demand and demand.requests_per_s


def pages_until(at_s, *, interval_s=15, span_s=900, rate=RATE):
    """(time, page) of each scrape of so long, to which this many requests/s came."""
    number = int(span_s / interval_s)
    times = [at_s - interval_s * back for back in range(number, -1, -1)]
    return [(each, a_page(rate * (each - BEGAN_S) + 1e6)) for each in times]


class TestWindows:
    @pytest.mark.parametrize("interval_s", [5, 15, 60])
    def test_are_between_scrapes_however_far_apart(self, interval_s):
        scrapes = a_fleet_of(interval_s=interval_s)
        span_s = 60 * interval_s
        a_round(scrapes, pages_until(BEGAN_S, interval_s=interval_s, span_s=span_s))

        found = the_engine(scrapes, BEGAN_S + 2)

        assert found.over(4).seconds == 3 * interval_s
        assert {each.completed_per_s for each in found.windows.values()} == {RATE}
        assert 0.9 * span_s <= found.over(60).seconds < span_s
        assert found.age_s == 2

    def test_have_all_scrapes_where_ticks_are_slower(self):
        scrapes = a_fleet_of(interval_s=5, tick_s=60)
        for tick in range(15):
            at_s = BEGAN_S + 60 * tick
            a_round(scrapes, pages_until(at_s, interval_s=5, span_s=75))

        found = the_engine(scrapes, at_s)

        assert found.over(20).seconds == 19 * 5
        assert found.over(20).completed_per_s == RATE

    def test_bridge_scrapes_that_failed_and_rounds_that_were_missed(self):
        scrapes = a_fleet_of()
        pages = pages_until(BEGAN_S)
        a_round(scrapes, pages[:50])
        a_round(scrapes, [pages[55], *pages[58:]])

        assert the_rate(scrapes, BEGAN_S) == pytest.approx(RATE)

    def test_of_a_young_engine_are_as_long_as_it_is_old(self):
        scrapes = a_fleet_of()
        a_round(scrapes, pages_until(BEGAN_S, span_s=45))

        found = the_engine(scrapes, BEGAN_S)

        assert (found.over(60).seconds, found.span_s) == (45, 45)
        assert found.over(60).completed_per_s == RATE

    def test_count_what_joined_the_queue(self):
        scrapes = a_fleet_of()
        a_round(scrapes, [(BEGAN_S + 15 * n, a_page(10 * n, waiting=5 * n)) for n in range(9)])

        found = the_engine(scrapes, BEGAN_S + 120)

        assert found.over(4).in_flight_per_s == pytest.approx(1 / 3)
        assert the_rate(scrapes, BEGAN_S + 120) == pytest.approx(1.0)

    def test_after_a_restart_of_the_operator_begin_with_what_it_asks_for_first(self):
        before, after = a_fleet_of(), a_fleet_of()
        pages = pages_until(BEGAN_S)
        for end in range(5, len(pages) + 1):
            a_round(before, pages[end - 5 : end])
        a_round(after, pages)  # between two scrapes: the last page is the same

        ages = [the_engine(each, BEGAN_S + 7) for each in (before, after)]

        assert ages[0] == ages[1]

    def test_go_back_to_what_is_answered_of_before_only_where_it_was_asked_for(self):
        def spans(anew):
            scrapes = a_fleet_of()
            pages = pages_until(BEGAN_S + 15)
            a_round(scrapes, pages[-5:-1])
            scrapes.expect(frozenset([POD]), anew=anew)
            a_round(scrapes, pages)
            found = the_engine(scrapes, BEGAN_S + 15)
            assert found.over(60).completed_per_s == RATE
            return found.span_s

        assert spans(frozenset()) == 60
        assert spans(frozenset([POD[0]])) == 900

    def test_take_a_page_that_waits_once_however_often_it_is_answered(self):
        scrapes, pages = a_fleet_of(), pages_until(BEGAN_S)
        began_anew = [(BEGAN_S + 15 * each, a_page(30.0 * each)) for each in range(1, 6)]
        a_round(scrapes, [*pages, began_anew[0]])
        scrapes.expect(frozenset([POD]), anew=frozenset([POD[0]]))
        a_round(scrapes, [*pages, *began_anew[:2]])
        a_round(scrapes, [*pages, *began_anew])

        found = the_engine(scrapes, BEGAN_S + 75)

        assert found.age_s == 0
        assert found.over(4).completed_per_s == RATE

    def test_are_not_made_anew_of_less_than_what_is_known(self):
        scrapes = a_fleet_of()
        pages = pages_until(BEGAN_S + 15)
        a_round(scrapes, pages[:-1])
        scrapes.expect(frozenset([POD]), anew=frozenset([POD[0]]))
        a_round(scrapes, pages[-9:])

        assert the_engine(scrapes, BEGAN_S + 15).span_s == 900

    def test_hold_no_figure_that_the_newest_pages_lack(self):
        scrapes = a_fleet_of()
        pages = pages_until(BEGAN_S)
        without = [(at_s, {**page, "completed": math.nan}) for at_s, page in pages[-4:]]
        a_round(scrapes, [*pages[:-4], *without])

        assert the_rate(scrapes, BEGAN_S) is None


class TestAge:
    def test_is_that_of_the_newest_scrape_and_an_old_engine_says_nothing(self):
        scrapes = a_fleet_of()
        a_round(scrapes, pages_until(BEGAN_S))

        fresh = the_engine(scrapes, BEGAN_S + FRESH_SCRAPES * 15)
        old = the_engine(scrapes, BEGAN_S + FRESH_SCRAPES * 15 + 1)

        assert (fresh.age_s, old.age_s) == (45, 46)
        assert fresh.windows
        assert (old.windows, old.ttft_within, old.running) == ({}, {}, 4)

    def test_where_the_newest_samples_come_half_a_minute_late_is_still_fresh(self):
        # As VictoriaMetrics answers: what was sampled in the last 30 s is not there yet.
        scrapes, found = a_fleet_of(), []
        for tick in range(40):
            now_s = BEGAN_S + 15 * tick + 3
            newest_s = now_s - 3 - 30
            a_round(scrapes, pages_until(newest_s, span_s=900 if not tick else 30))
            found.append(the_rate(scrapes, now_s))

        assert found == pytest.approx([RATE] * 40)


class TestPrometheusReplicas:
    def both(self, ticks, *, silent=()):
        """Rates while two replicas scrape at other moments; ``silent``: (replica, from tick)."""
        scrapes, found = a_fleet_of(), []
        for tick in range(ticks):
            answered = Answered()
            for replica, late_s in (("a", 0.0), ("b", 6.0)):
                until = dict(silent).get(replica, math.inf)
                pages = [
                    each
                    for each in pages_until(BEGAN_S + 15 * tick - late_s, span_s=60)
                    if each[0] < BEGAN_S + 15 * until
                ]
                for name in ("running", "queued", "completed") if pages else ():
                    labels = labels_of(name, POD, prometheus_replica=replica)
                    samples = [(at_s, float(page[name])) for at_s, page in pages]
                    take_series(scrapes, answered, labels, samples)
            scrapes.add(answered)
            found.append(the_engine(scrapes, BEGAN_S + 15 * tick))
        return found

    def test_are_not_counted_twice_and_one_of_them_is_followed(self):
        found = self.both(20)

        assert {each.over(8).completed_per_s for each in found[9:]} == {RATE}
        assert len({each.age_s for each in found}) == 1

    @pytest.mark.parametrize("stopped", ["a", "b"])
    def test_of_which_the_one_that_is_followed_stops_the_other_is(self, stopped):
        found = self.both(30, silent=[(stopped, 10)])

        assert all(each.windows for each in found), "always fresh"
        assert found[-1].age_s in {0, 6}
        assert found[-1].over(20).completed_per_s == pytest.approx(RATE)

    def test_with_the_same_times_count_once(self):
        scrapes = a_fleet_of()
        pages = pages_until(BEGAN_S)
        answered = Answered()
        for replica in "ab":
            for name in ("running", "queued", "completed"):
                labels = labels_of(name, POD, prometheus_replica=replica)
                take_series(scrapes, answered, labels, [(t, float(p[name])) for t, p in pages])
        scrapes.add(answered)

        assert the_rate(scrapes, BEGAN_S) == pytest.approx(RATE)


class TestOddPages:
    def rates(self, pages):
        """What is measured after each scrape; None: nothing fresh."""
        scrapes, found = a_fleet_of(), []
        for at_s, page in pages:
            a_round(scrapes, [(at_s, page)])
            found.append(the_rate(scrapes, at_s))
        return found

    @pytest.mark.parametrize("factor", [0, 0.5, 100])
    @pytest.mark.parametrize("number", [1, 2])
    def test_one_or_two_that_are_of_another_engine_are_left_out(self, factor, number):
        pages = took(pages_until(BEGAN_S), 2)
        for at in range(50, 50 + number):
            at_s, page = pages[at]
            pages[at] = at_s, {name: factor * value for name, value in page.items()}

        found = self.rates(pages)

        assert found[20:] == pytest.approx([RATE] * len(found[20:]))

    def test_an_engine_that_begins_anew_goes_on_at_its_rate(self):
        pages = pages_until(BEGAN_S)
        again = [(at_s, a_page(RATE * 15 * n)) for n, (at_s, _) in enumerate(pages[50:])]

        found = self.rates([*pages[:50], *again])

        assert found[20:] == pytest.approx([RATE] * len(found[20:]))

    def test_another_engine_under_the_same_labels_is_no_demand(self):
        pages = pages_until(BEGAN_S)
        other = [(at_s, a_page(5e7 + RATE * (at_s - BEGAN_S))) for at_s, _ in pages[50:]]

        found = self.rates(took([*pages[:50], *other], 2))

        told = [each for each in found[20:] if each is not None]
        assert told == pytest.approx([RATE] * len(told))
        assert found[-1] is not None

    def test_a_surge_of_eight_times_is_seen_at_once(self):
        pages, in_flight, ended = pages_until(BEGAN_S)[:50], 4, 1e6
        for n in range(10):  # answers take a minute
            at_s = pages[-1][0] + 15
            ended = pages[-1][1]["completed"] + 15 * RATE * (1 if n < 4 else 8)
            in_flight += 15 * RATE * 7 if n < 4 else 0
            pages.append((at_s, a_page(ended, running=in_flight)))

        found = self.rates(pages)

        assert None not in found[3:]
        assert found[50] > 2 * RATE, "the first scrape"
        assert found[52] > 5 * RATE, "the third"
        assert found[-1] == pytest.approx(8 * RATE, rel=0.05)

    def test_a_surge_of_requests_that_end_within_a_scrape_is_believed_at_the_third(self):
        pages = pages_until(BEGAN_S)[:50]
        last_s, last = pages[-1][0], pages[-1][1]["completed"]
        surge = [(last_s + 15 * n, a_page(last + 240 * RATE * n)) for n in range(1, 9)]

        found = self.rates([*pages, *surge])

        assert found[52] > 4 * RATE
        assert found[-1] == pytest.approx(16 * RATE)

    @pytest.mark.parametrize("ended", [0, 1e6])
    def test_a_surge_of_short_requests_is_seen_at_once_where_their_time_is_told(self, ended):
        # 300 that took half a second: ten at a time. Before, none came for minutes.
        times = [BEGAN_S + 15 * n for n in range(12)]
        pages = [(at_s, a_page(ended + 300 * max(0, n - 9), 0)) for n, at_s in enumerate(times)]

        seen, doubted = self.rates(took(pages, 0.5)), self.rates(took(pages, 5))

        assert seen[10] == pytest.approx(300 / 45)
        assert doubted[10] == doubted[11] == 0

    @given(
        st.lists(st.sampled_from([0.0, 0.5, 1.0, 100.0, math.nan]), min_size=30, max_size=80),
        st.sampled_from([0.5, 5]),
    )
    def test_no_more_is_counted_than_would_come_by_a_hundredfold_page(self, factors, each_s):
        pages = [(BEGAN_S + 15 * n, a_page(1e6 + 30 * n)) for n in range(len(factors))]
        pages = took(pages, each_s)
        mixed = [
            (at_s, {name: value * factor for name, value in page.items()})
            for (at_s, page), factor in zip(pages, factors, strict=True)
        ]

        for rate in self.rates(mixed):
            assert rate is None or 0 <= rate <= 100 * RATE + 100 * 4


class TestEngines:
    def test_of_a_pod_are_no_more_than_one_may_have(self):
        scrapes = a_fleet_of()
        for number in range(100):
            at_s = BEGAN_S + 15 * number
            for engine in ("0", *(str(1000 * number + each) for each in range(64))):
                take_page(scrapes, POD, at_s, a_page(number), engine)

        assert len(scrapes.engines[POD]) <= MAX_ENGINES
        assert scrapes.engines[POD]["0"].at_s == at_s

    def test_of_pods_that_are_not_asked_for_are_not_kept(self):
        scrapes = a_fleet_of(("serving", "b"))
        take_page(scrapes, POD, BEGAN_S, a_page(1))

        assert list(scrapes.engines) == []

    def test_keep_namespaces_and_ranks_apart(self):
        pods = ("blue", "a"), ("green", "a")
        scrapes = a_fleet_of(*pods)
        for number, pod in enumerate(pods):
            for engine in ("0", "1"):
                take_page(scrapes, pod, BEGAN_S, a_page(1, running=number + 1), engine)

        found = fleet_samples(scrapes, BEGAN_S)

        assert {pod: [e.running for e in found[pod]] for pod in pods} == {
            pods[0]: [1, 1],
            pods[1]: [2, 2],
        }

    def test_what_has_no_engine_counts_with_the_first(self):
        scrapes = a_fleet_of()
        answered = Answered()
        times = [BEGAN_S, BEGAN_S + 15]
        for engine in ("0", "1"):
            for name in ("running", "queued", "completed"):
                labels = labels_of(name, POD, engine)
                take_series(scrapes, answered, labels, [(t, 0.0) for t in times])
        refused = labels_of("rejected", POD, None)
        take_series(scrapes, answered, refused, [(times[0], 0.0), (times[1], 15.0)])
        scrapes.add(answered)

        found = fleet_samples(scrapes, times[1])[POD]

        assert [each.over(4).rejected_per_s for each in found] == [1, None]

    def test_that_go_silent_are_forgotten_when_no_window_reaches_them(self):
        scrapes = a_fleet_of()
        take_page(scrapes, POD, BEGAN_S, a_page(1))
        scrapes.forget_silent(BEGAN_S + 900)
        assert list(scrapes.engines) == [POD]

        scrapes.forget_silent(BEGAN_S + 901)
        assert list(scrapes.engines) == []


class TestFigures:
    def with_page(self, **page):
        scrapes = a_fleet_of()
        for number in (0, 1):
            told = {name: value * (number or 0.5) for name, value in page.items()}
            take_page(scrapes, POD, BEGAN_S + 15 * number, {"running": 1, "queued": 2, **told})
        return the_engine(scrapes, BEGAN_S + 15)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e308])
    @pytest.mark.parametrize("name", [name for name in PLACES if name not in {"running", "queued"}])
    def test_that_cannot_be_are_missing(self, name, value):
        found = self.with_page(**{"completed": 2, name: value})

        assert found.running == 1
        told = {"waiting": found.waiting, "kv_usage": found.kv_usage_fraction}
        told |= {"deferred": found.mean_deferred, "completed": found.over(4).completed_per_s}
        assert told.get(name) in {None, 2.0}  # what waits is told by the older gauge too

    def test_of_refusals_that_cannot_be_make_arrivals_unknown(self):
        found = self.with_page(completed=2, rejected=math.nan)

        assert found.over(4).completed_per_s is None
        assert found.ttft_within == {}

    def test_of_which_a_part_cannot_be_are_missing(self):
        scrapes, answered = a_fleet_of(), Answered()
        for name in ("running", "queued"):
            take_series(scrapes, answered, labels_of(name, POD), [(BEGAN_S, 1.0)])
        for ended, value in (("stop", 5.0), ("length", math.nan)):
            labels = labels_of("completed", POD, finished_reason=ended)
            samples = [(BEGAN_S, value), (BEGAN_S + 15, value + 1)]
            take_series(scrapes, answered, labels, samples)
        for name in ("running", "queued"):
            take_series(scrapes, answered, labels_of(name, POD), [(BEGAN_S + 15, 1.0)])
        scrapes.add(answered)

        assert the_rate(scrapes, BEGAN_S + 15) is None

    def test_of_an_older_engine_have_other_names(self):
        scrapes, answered = a_fleet_of(), Answered()
        times = [BEGAN_S, BEGAN_S + 15]
        names = {"vllm:gpu_cache_usage_perc": 0.5, "vllm:num_requests_running": 1.0,
                 "vllm:num_requests_waiting": 3.0}  # fmt: skip
        for metric, value in names.items():
            labels = labels_of("running", POD) | {"__name__": metric}
            take_series(scrapes, answered, labels, [(t, value) for t in times])
        scrapes.add(answered)
        found = the_engine(scrapes, times[1])

        assert (found.kv_usage_fraction, found.waiting) == (0.5, 3)

    def test_of_a_cache_are_in_labels(self):
        scrapes = a_fleet_of()
        take_page(scrapes, POD, BEGAN_S, a_page(1))
        labels = labels_of("running", POD, kv_cache_size_tokens="5000", num_gpu_blocks="auto")
        answered = Answered()
        named = labels | {"__name__": "vllm:cache_config_info"}
        take_series(scrapes, answered, named, [(BEGAN_S, 1.0)])
        scrapes.add(answered)
        found = the_engine(scrapes, BEGAN_S)

        assert (found.kv_tokens, found.num_gpu_blocks) == (5000, None)

    def with_latencies(self, number, *, in_time=15):
        """An engine of so many scrapes: 30 requests between two, 15 more refused, 7 deferred."""
        scrapes, answered = a_fleet_of(), Answered()
        times = [BEGAN_S - 15 * back for back in range(number - 1, -1, -1)]
        bucket = "vllm:time_to_first_token_seconds_bucket"
        for le, per_scrape in (("0.5", in_time), ("+Inf", 30), ("0.0", 1)):
            labels = labels_of("running", POD, le=le) | {"__name__": bucket}
            samples = [(at_s, float(per_scrape * n)) for n, at_s in enumerate(times)]
            take_series(scrapes, answered, labels, samples)
        gauges = {"running": 1.0, "queued": 7.0, "deferred": 7.0}
        for name, per_scrape in {
            **dict.fromkeys(gauges, 0),
            "completed": 1,
            "rejected": 15,
        }.items():
            samples = [(t, gauges.get(name, 0) + per_scrape * n) for n, t in enumerate(times)]
            take_series(scrapes, answered, labels_of(name, POD), samples)
        scrapes.add(answered)
        return the_engine(scrapes, BEGAN_S)

    def test_of_histograms_are_rates_by_bound(self):
        assert self.with_latencies(8).ttft_within == {0.5: 1, math.inf: 2}

    def test_of_queues_and_of_prompts_are_rates_by_bound_and_sums_of_times_too(self):
        scrapes, answered = a_fleet_of(), Answered()
        times = [BEGAN_S - 15 * back for back in range(7, -1, -1)]
        for metric, bound in (
            ("request_queue_time_seconds", "1.5"),
            ("request_prompt_tokens", "2000.0"),
        ):
            for le, per_scrape in ((bound, 15), ("+Inf", 30)):
                labels = labels_of("running", POD, le=le) | {"__name__": f"vllm:{metric}_bucket"}
                samples = [(at_s, float(per_scrape * n)) for n, at_s in enumerate(times)]
                take_series(scrapes, answered, labels, samples)
        for name, per_scrape in {
            "running": 0,
            "first_token_s": 45,
            "queue_s": 15,
            "queues": 30,
        }.items():
            samples = [(at_s, float(per_scrape * n)) for n, at_s in enumerate(times)]
            take_series(scrapes, answered, labels_of(name, POD), samples)
        scrapes.add(answered)

        found = the_engine(scrapes, BEGAN_S)
        window = found.over(8)

        assert found.queue_within == {1.5: 1, math.inf: 2}
        assert found.prompts_within == {2000.0: 1, math.inf: 2}
        assert (window.first_token_s_per_s, window.queue_s_per_s, window.queues_per_s) == (3, 1, 2)

    def test_of_queues_and_prompts_of_an_engine_before_these_metrics_are_not_known(self):
        found = self.with_latencies(8)

        assert (found.queue_within, found.prompts_within) == ({}, {})
        assert found.over(8).queue_s_per_s is None
        assert found.over(8).first_token_s_per_s is None

    def test_of_latencies_are_of_the_whole_window_where_a_part_was_watched(self):
        whole, part = self.with_latencies(8), self.with_latencies(2)

        assert part.ttft_within == pytest.approx({0.5: 1 / 7, math.inf: 2 / 7})
        assert [each.refused_per_s for each in (whole, part)] == pytest.approx([1, 1 / 7])
        assert [each.mean_deferred for each in (whole, part)] == pytest.approx([7, 1])

    def test_of_latencies_weigh_a_young_engine_by_its_requests(self):
        # 210 of the old one, all in time; 30 of the new one, all late.
        engines = [self.with_latencies(8, in_time=30), self.with_latencies(2, in_time=0)]

        share = attainment([each.ttft_within for each in engines], limit_s=0.5)

        assert share == pytest.approx(210 / 240)

    def test_of_gpus_are_the_mean_of_a_pod(self):
        scrapes, answered = a_fleet_of(), Answered()
        take_page(scrapes, POD, BEGAN_S, a_page(1))
        for number, value in enumerate((0.2, 0.6)):
            labels = {"__name__": "DCGM_FI_PROF_DRAM_ACTIVE", "UUID": f"GPU-{number}",
                      "namespace": "monitoring", "pod": "dcgm", "exported_namespace": POD[0],
                      "exported_pod": POD[1]}  # fmt: skip
            take_series(scrapes, answered, labels, [(BEGAN_S, value), (BEGAN_S + 15, value)])
        scrapes.add(answered)

        assert the_engine(scrapes, BEGAN_S).dram_active_fraction == pytest.approx(0.4)


OTHERS = {
    "prefixes": ["kserve_"],
    "labels": [{"namespace": "exported_namespace", "pod": "exported_pod"}],
}


class TestOtherSeries:
    def put(self, scrapes, rename):
        """Answer with the pages of a quarter of an hour, their labels renamed."""
        answered = Answered()
        pages = pages_until(BEGAN_S)
        for name in pages[0][1]:
            samples = [(at_s, float(page[name])) for at_s, page in pages]
            take_series(scrapes, answered, rename(labels_of(name, POD)), samples)
        scrapes.add(answered)

    def prefixed(self, labels):
        return labels | {"__name__": f"kserve_{labels['__name__']}"}

    def by_collector(self, labels):
        """As a collector between engine and Prometheus exports them: the target is its own pod."""
        exported = {f"exported_{name}": labels[name] for name in ("namespace", "pod")}
        return labels | exported | {"namespace": "monitoring", "pod": "collector-0"}

    @pytest.mark.parametrize(
        "ways", [("prefixed",), ("by_collector",), ("prefixed", "by_collector")]
    )
    def test_of_a_known_prefix_and_of_known_labels_count_as_any(self, ways):
        def rename(labels):
            for way in ways:
                labels = getattr(self, way)(labels)
            return labels

        known, unknown = a_fleet_of(other_series=OTHERS), a_fleet_of()
        for scrapes in (known, unknown):
            self.put(scrapes, rename)

        assert the_rate(known, BEGAN_S + 2) == pytest.approx(RATE)
        assert fleet_samples(unknown, BEGAN_S + 2).get(POD, ()) == ()

    def test_of_two_monitors_of_one_engine_count_once(self):
        scrapes = a_fleet_of(other_series=OTHERS)
        for rename in (dict, self.prefixed):
            self.put(scrapes, rename)

        assert the_rate(scrapes, BEGAN_S + 2) == pytest.approx(RATE)

    def test_the_targets_own_pod_counts_before_what_its_page_claims(self):
        scrapes = a_fleet_of(POD, ("serving", "b"), other_series=OTHERS)
        self.put(scrapes, lambda labels: labels | {"exported_namespace": "serving",
                                                   "exported_pod": "b"})  # fmt: skip

        assert the_rate(scrapes, BEGAN_S + 2) == pytest.approx(RATE)
        assert fleet_samples(scrapes, BEGAN_S + 2).get(("serving", "b"), ()) == ()
