"""What some rivals read of engines themselves, and what one is handed that nobody can know."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from oracle import Oracle
from tonnage.engine.core import Engine
from tonnage.engine.step_costs import StepCosts
from tonnage.engine.table import RequestTable
from tonnage.replay.baselines.rule import Arrivals, Rule, Signals, whole
from tonnage.replay.cluster import Pod, SimulatedCluster
from tonnage.replay.ground_truth import Machine
from tonnage.replay.prometheus import Query, Series
from tonnage.sizing.expected import expected_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The latencies of an engine by its load, without noise: in favour of whoever uses it."""

    ttft_s: Callable[[float], float]
    """Of a prompt of so many tokens, alone."""
    itl_s: Callable[[int, float], float]
    """Of so many sequences that decode, each with so many tokens of context."""


def decode_step_s(costs: StepCosts, num_decoding: int, context_tokens: float) -> float:
    """Return the time of a step in which sequences of one length decode, and nothing else.

    ``base[n] + max(memory[n] + f[n] * n * memory_price, compute[n] + f[n] * n * compute_price)``:
    what ``StepCosts`` says, for one rank without prompts. Beyond the largest batch: that one.
    """
    n = min(num_decoding, len(costs.base_s) - 1)
    knot = bisect_right(costs.knots_tokens, context_tokens) - 1
    beyond = context_tokens - costs.knots_tokens[knot]
    memory_s = costs.memory_price_s[knot] + beyond * costs.memory_slope_s[knot]
    compute_s = costs.compute_price_s[knot] + beyond * costs.compute_slope_s[knot]
    each = costs.context_factor[n] * n
    overlapped_s = max(costs.memory_s[n] + each * memory_s, costs.compute_s[n] + each * compute_s)
    return costs.base_s[n] + overlapped_s


@dataclass(slots=True, kw_only=True)
class Patience:
    """Counts decisions to go up, or to go down, since the last one that did not."""

    up_s: float
    down_s: float
    ups: int = 0
    downs: int = 0

    def confirm(self, wanted: int, signals: Signals, interval_s: float) -> int:
        """Return the newest number wanted once its direction has been wanted long enough."""
        now = signals.asked
        self.ups = self.ups + 1 if wanted > now else 0
        self.downs = self.downs + 1 if wanted < now else 0
        is_up = self.ups and self.ups >= math.ceil(self.up_s / interval_s)
        is_down = self.downs and self.downs >= math.ceil(self.down_s / interval_s)
        if not (is_up or is_down):
            return now
        self.ups = self.downs = 0
        return wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRequest:
    """What one request of the expected lengths meets on an idle replica."""

    input_tokens: int
    output_tokens: int
    ttft_s: float
    itl_s: float


@dataclass(slots=True)
class ReadsEngines:
    """A rule whose queries engines answer as of now, not Prometheus; all are plain metrics."""

    rule: Rule
    table: Mapping[str, Query] = field(default_factory=dict)
    """Prometheus is asked nothing."""

    @property
    def interval_s(self) -> float:
        return self.rule.interval_s

    def replicas(self, signals: Signals) -> int:
        answers = _answers(_cluster(signals), self.rule.table, signals)
        return self.rule.replicas(replace(signals, answers=answers))


def counters(metrics: Mapping[str, str]) -> dict[str, Query]:
    """Return the queries of counters as they stand, by our names for them."""
    return {name: Query(metric=f"vllm:{metric}") for name, metric in metrics.items()}


def probe_of(signals: Signals) -> IdleRequest:
    """Return what a request of the lengths that the spec expects meets on an idle replica."""
    cluster = _cluster(signals)
    mean = expected_workload(cluster.model.spec)
    prompt, output = round(mean.prompt.mean_tokens), round(mean.output_tokens)
    return _probe(cluster.machine, prompt, output)


def profile_of(signals: Signals) -> Profile:
    """Return what a planner measures of an engine before the deployment."""
    machine = _cluster(signals).machine
    return Profile(
        ttft_s=partial(_alone_ttft_s, machine), itl_s=partial(decode_step_s, machine.costs)
    )


def true_requests_per_s(signals: Signals) -> float:
    """Return the goodput of a replica as it is, of the requests that come first."""
    cluster = _cluster(signals)
    request = replace(cluster.request, flags=signals.flags)
    oracle = Oracle(request=request, machine=cluster.machine)
    return oracle.staffing(cluster.traffic.shapes[0][1]).each(1)


def _cluster(signals: Signals) -> SimulatedCluster:
    if signals.cluster is None:
        raise ValueError("these signals are of no simulation")
    return signals.cluster


def _ready(cluster: SimulatedCluster, at_s: float) -> list[Pod]:
    return [pod for pod in cluster.remaining_pods if pod.ready_s <= at_s]


def _answers(
    cluster: SimulatedCluster, table: Mapping[str, Query], signals: Signals
) -> Mapping[str, Sequence[Series]]:
    names = {query.metric: name for name, query in table.items()}
    found: dict[str, list[Series]] = {name: [] for name in table}
    for pod in _ready(cluster, signals.at_s):
        for (metric, labels), value in pod.counters.page(signals.at_s).items():
            if metric in names:
                told = {**dict(labels), signals.pod_label: pod.name}
                found[names[metric]].append(Series(labels=told, value=value))
    return found


def _alone_ttft_s(machine: Machine, input_tokens: float) -> float:
    tokens = min(max(1, round(input_tokens)), machine.limits.max_model_len - 1)
    return _probe(machine, tokens, 1).ttft_s


def _probe(machine: Machine, input_tokens: int, output_tokens: int) -> IdleRequest:
    prompts, outputs = array("q", [input_tokens]), array("q", [output_tokens])
    table = RequestTable(prompts, outputs, array("q", [0]), array("d", [0.0]))
    engine = Engine(machine.limits, machine.costs, table)
    engine.submit(0)
    engine.advance(math.inf)
    ttft_s = table.first_token_s[0]
    return IdleRequest(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        ttft_s=ttft_s,
        itl_s=(table.ended_s[0] - ttft_s) / max(1, output_tokens - 1),
    )


HOLD_S: Final = 300.0
WINDOW_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class TrueRate:
    """Asks for the rate of a minute over a share ``load`` of a replica's true goodput.

    Follows nobody: it tells what comes of not knowing the capacity from what comes of not knowing
    the future. The number is held for five minutes, like an HPA's.
    """

    load: float
    true: Callable[[Signals], float] = true_requests_per_s
    each: float | None = None
    """That a replica serves; None: it was not asked yet."""
    arrivals: Arrivals = field(default_factory=lambda: Arrivals(window_s=WINDOW_S))
    asked: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many, within the time that they are held."""
    interval_s: float = 15.0
    table: Mapping[str, Query] = field(default_factory=dict)

    def replicas(self, signals: Signals) -> int:
        at_s, rate = signals.at_s, self.arrivals.requests_per_s(signals)
        if rate is None:
            self.asked.append((at_s, signals.asked))
            return signals.asked
        self.each = self.each or self.true(signals)
        wanted = whole(rate / (self.load * self.each))
        self.asked = [each for each in self.asked if each[0] > at_s - HOLD_S] + [(at_s, wanted)]
        return max(number for _, number in self.asked)
