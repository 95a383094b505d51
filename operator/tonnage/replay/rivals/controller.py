"""A rival at work: deploys what it is given, then does what its rule says."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tonnage.engine.core import Engine
from tonnage.engine.table import RequestTable
from tonnage.estimate.metrics import Query
from tonnage.estimate.series import Series
from tonnage.replay.cluster import Pod, SimulatedCluster
from tonnage.replay.prometheus import SimulatedPrometheus
from tonnage.replay.record import Record, moment
from tonnage.replay.rivals.profile import Profile, decode_step_s
from tonnage.replay.rivals.rule import IdleRequest, Pass, Rule, RuleInput, SeenPod, Signals
from tonnage.replay.truth import Machine
from tonnage.replay.views import EPOCH_S
from tonnage.settings import Settings
from tonnage.sizing.expected import expected_workload, slo_of
from tonnage.sizing.request import Flags

Answers = Mapping[str, Sequence[Series]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a rival starts with, of one object: none of them chooses flags."""

    flags: Flags
    replicas: int
    believed_requests_per_s: float
    """Goodput of a replica, as the plan has it."""
    true_requests_per_s: float
    """The same as it is; for the one rule that is handed it."""


@dataclass(slots=True)
class RivalController:
    """Scales each cluster of a simulation by a rule of its own.

    Before the traffic begins no rule is asked: it would see an idle fleet and take it away.
    """

    settings: Settings
    rules: Mapping[str, Rule]
    """By uid of the object; all of one kind, each of a run of its own."""
    given: Mapping[str, Given]
    """By uid of the object."""
    _told: dict[str, RuleInput] = field(default_factory=dict)

    @property
    def interval_s(self) -> float:
        return self._any.interval_s

    @property
    def table(self) -> Mapping[str, Query]:
        return self._any.table

    @property
    def _any(self) -> Rule:
        return next(iter(self.rules.values()))

    def act(self, records: Sequence[Record], prometheus: SimulatedPrometheus, at_s: float) -> None:
        """Deploy or scale the clusters, and note a moment of each."""
        is_asked = at_s >= 0 and not self._any.reads_engines
        answers = prometheus.ask(EPOCH_S + at_s) if is_asked else {}
        for record in records:
            if record.cluster.template is None:
                self._deploy(record, at_s)
            elif at_s >= 0:
                self._scale(record, answers, at_s)
            record.moments.append(moment(record, at_s))

    def _deploy(self, record: Record, at_s: float) -> None:
        uid = record.served.model.uid
        given = self.given[uid]
        record.cluster.deploy(given.flags, given.replicas, at_s)
        self._told[uid] = _rule_input(record, given)

    def _scale(self, record: Record, answers: Answers, at_s: float) -> None:
        cluster, uid = record.cluster, record.served.model.uid
        rule, told = self.rules[uid], self._told[uid]
        pods, in_flight = cluster.remaining_pods, _in_flight(cluster, at_s)
        found = self._read(cluster, rule.table, at_s) if rule.reads_engines else answers
        signals = Signals(
            at_s=at_s,
            asked=cluster.replicas,
            pods=tuple(_pod_age(pod, at_s) for pod in pods),
            answers=self._of(cluster, pods, found),
            passes=_passes(cluster, at_s) if rule.reads_engines else {},
            arrived=bisect_right(cluster.traffic.arrival_s, at_s),
            in_flight=in_flight,
            waiting_at_router=cluster.waiting_at_router(at_s),
            told=told,
            pod_label=self.settings.pod_label,
        )
        wanted = min(told.max_replicas, max(told.min_replicas, rule.replicas(signals)))
        if wanted != cluster.replicas:
            cluster.scale(wanted, at_s)

    def _of(self, cluster: SimulatedCluster, pods: Sequence[Pod], answers: Answers) -> Answers:
        """Return what was answered about these pods."""
        names, namespace = {pod.name for pod in pods}, cluster.model.namespace
        place, name = self.settings.namespace_label, self.settings.pod_label
        return {
            query: [
                each
                for each in found
                if each.labels[place] == namespace and each.labels[name] in names
            ]
            for query, found in answers.items()
        }

    def _read(self, cluster: SimulatedCluster, table: Mapping[str, Query], at_s: float) -> Answers:
        """Return what the engines that are Ready say now, in answer to a table."""
        names = {query.metric: name for name, query in table.items()}
        found: dict[str, list[Series]] = {name: [] for name in table}
        place, name = self.settings.namespace_label, self.settings.pod_label
        for pod in _ready(cluster, at_s):
            of_pod = {place: cluster.model.namespace, name: pod.name}
            for (metric, labels), value in pod.counters.page(at_s).items():
                if metric in names:
                    told = {**dict(labels), **of_pod}
                    series = Series(labels=told, value=value, evaluated_at_s=EPOCH_S + at_s)
                    found[names[metric]].append(series)
        return found


def _ready(cluster: SimulatedCluster, at_s: float) -> list[Pod]:
    return [pod for pod in cluster.remaining_pods if pod.ready_s <= at_s]


def _passes(cluster: SimulatedCluster, at_s: float) -> dict[str, Pass]:
    return {
        pod.name: _pass(pod.engine, pod.counters.queued_tokens, at_s)
        for pod in _ready(cluster, at_s)
    }


def _pass(engine: Engine, queued: int, at_s: float) -> Pass:
    (rank,) = engine.ranks
    if engine.ends_s == math.inf:
        return Pass(queued_tokens=queued)
    steps = engine.ended(at_s)
    return Pass(
        prefill_tokens=rank.prefill_tokens,
        decode_tokens=rank.context_tokens + steps * rank.growing_tokens,
        num_decoding=rank.num_decoding,
        queued_tokens=queued,
        wall_s=engine.first_s + steps * engine.more_s,
    )


def _in_flight(cluster: SimulatedCluster, at_s: float) -> int:
    """Return the requests that are not done, those on pods that drain too."""
    for pod in cluster.live:
        pod.engine.advance(at_s)
    held = sum(pod.engine.num_outstanding for pod in cluster.live)
    return held + cluster.waiting_at_router(at_s)


def _pod_age(pod: Pod, at_s: float) -> SeenPod:
    return SeenPod(
        name=pod.name,
        age_s=at_s - pod.created_s,
        ready_for_s=at_s - pod.ready_s if pod.ready_s <= at_s else None,
    )


def _rule_input(record: Record, given: Given) -> RuleInput:
    model, machine = record.served.model, record.cluster.machine
    scaling, mean = model.spec.scaling, expected_workload(model.spec)
    return RuleInput(
        flags=given.flags,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        slo=slo_of(model.spec),
        kv_tokens=machine.kv_tokens,
        prefill_tokens_per_s=_prefill_tokens_per_s(machine),
        probe=_probe(machine, round(mean.prompt.mean_tokens), round(mean.output_tokens)),
        believed_requests_per_s=given.believed_requests_per_s,
        true_requests_per_s=given.true_requests_per_s,
        profile=Profile(
            ttft_s=partial(_alone_ttft_s, machine),
            itl_s=partial(decode_step_s, machine.costs),
        ),
    )


def _prefill_tokens_per_s(machine: Machine) -> float:
    """Return the tokens of one chunk over the TTFT of it alone."""
    limits = machine.limits
    chunk = min(limits.max_num_batched_tokens, limits.max_model_len - 1)
    return chunk / _alone_ttft_s(machine, chunk)


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
