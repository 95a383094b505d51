"""A rival at work: deploys what it is given, then does what its rule says."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tonnage.replay.baselines.rule import ObservedPod, Rule, RuleInput, Signals
from tonnage.replay.cluster import EPOCH_S, Pod, SimulatedCluster
from tonnage.replay.prometheus import Query, Series, SimulatedPrometheus
from tonnage.replay.record import FirstPlan, Record, moment
from tonnage.settings import Settings
from tonnage.sizing.expected import slo_of

Answers = Mapping[str, Sequence[Series]]


@dataclass(slots=True)
class RivalController:
    """Scales the cluster of a simulation by a rule.

    Before the traffic begins the rule is not asked: it would see an idle fleet and take it away.
    """

    settings: Settings
    rule: Rule
    planned: FirstPlan
    """What it starts with: no rule chooses flags."""
    reads_scrapes: bool = False

    @property
    def interval_s(self) -> float:
        return self.rule.interval_s

    @property
    def table(self) -> Mapping[str, Query]:
        return self.rule.table

    def act(self, record: Record, prometheus: SimulatedPrometheus, at_s: float) -> None:
        """Deploy or scale the cluster, and note a moment of it."""
        if record.cluster.template is None:
            record.cluster.deploy(self.planned.flags, self.planned.replicas, at_s)
        elif at_s >= 0:
            self._scale(record, prometheus.ask(EPOCH_S + at_s), at_s)
        record.moments.append(moment(record, at_s))

    def _scale(self, record: Record, answers: Answers, at_s: float) -> None:
        cluster, told = record.cluster, _rule_input(record, self.planned)
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
        wanted = min(told.max_replicas, max(told.min_replicas, self.rule.replicas(signals)))
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
    outstanding = sum(pod.engine.num_outstanding for pod in cluster.live)
    return outstanding + cluster.waiting_at_router(at_s)


def _pod_age(pod: Pod, at_s: float) -> ObservedPod:
    return ObservedPod(
        name=pod.name,
        age_s=at_s - pod.created_s,
        ready_for_s=at_s - pod.ready_s if pod.ready_s <= at_s else None,
    )


def _rule_input(record: Record, planned: FirstPlan) -> RuleInput:
    model, machine = record.served.model, record.cluster.machine
    scaling = model.spec.scaling
    return RuleInput(
        flags=planned.flags,
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        slo=slo_of(model.spec),
        kv_tokens=machine.kv_tokens,
        believed_requests_per_s=planned.believed_requests_per_s,
    )
