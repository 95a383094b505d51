"""A rival at work: deploys what it is given, then does what its rule says."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tonnage.estimate.metrics import Query
from tonnage.estimate.series import Series
from tonnage.replay.cluster import Pod, SimulatedCluster
from tonnage.replay.prometheus import SimulatedPrometheus
from tonnage.replay.record import Record, moment
from tonnage.replay.rivals.rule import Rule, RuleInput, SeenPod, Signals
from tonnage.replay.views import EPOCH_S
from tonnage.settings import Settings
from tonnage.sizing.expected import slo_of
from tonnage.sizing.request import Flags

Answers = Mapping[str, Sequence[Series]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a rival starts with, of one object: none of them chooses flags."""

    flags: Flags
    replicas: int
    believed_requests_per_s: float
    """Goodput of a replica, as the plan has it."""


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
        answers = prometheus.ask(EPOCH_S + at_s) if at_s >= 0 else {}
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
        signals = Signals(
            at_s=at_s,
            asked=cluster.replicas,
            pods=tuple(_pod_age(pod, at_s) for pod in pods),
            answers=self._of(cluster, pods, answers),
            arrived=bisect_right(cluster.traffic.arrival_s, at_s),
            in_flight=in_flight,
            waiting_at_router=cluster.waiting_at_router(at_s),
            told=told,
            pod_label=self.settings.pod_label,
            cluster=cluster,
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
    scaling = model.spec.scaling
    return RuleInput(
        flags=given.flags,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        slo=slo_of(model.spec),
        kv_tokens=machine.kv_tokens,
        believed_requests_per_s=given.believed_requests_per_s,
    )
