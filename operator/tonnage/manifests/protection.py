"""The objects that protect running engines: PodDisruptionBudget and NetworkPolicy."""

from collections.abc import Mapping

from tonnage.api.objects import ModelDeployment
from tonnage.api.pod_rules import HTTP_PORT
from tonnage.api.pods import DisruptionBudget, EngineNetwork, Peer, Pods
from tonnage.api.status import Reason
from tonnage.manifests.children import Site, metadata_of
from tonnage.manifests.names import Manifest, selector
from tonnage.units import count_of

DNS_PORT = 53
NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"


def protections(
    model: ModelDeployment, site: Site, num_nodes: int = 1
) -> Mapping[str, Manifest | None]:
    """Return {kind: manifest}, None for what the spec does not ask for.

    ``num_nodes``: over which each replica runs, a pod on each. The policy comes first: no engine
    starts before it.
    """
    pods = model.spec.pods or Pods()
    budget, network = pods.disruption_budget, pods.network_policy
    return {
        "NetworkPolicy": network_policy(model, network, site, num_nodes) if network else None,
        "PodDisruptionBudget": disruption_budget(model, budget, num_nodes) if budget else None,
    }


def disruption_budget(
    model: ModelDeployment, asked: DisruptionBudget, num_nodes: int = 1
) -> Manifest:
    """Return the budget. An engine that is not Ready answers nobody: it may always be evicted.

    It counts pods, and a replica over several nodes ends with any of its pods, of which workers are
    Ready long before their leader: one pod may go where all of one more replica are Ready.
    """
    kept = asked.min_available
    pods = {"minAvailable": (kept + 1) * num_nodes - 1} if isinstance(kept, int) else {}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata_of(model),
        "spec": {
            **asked.to_dict(),
            **pods,
            "selector": {"matchLabels": selector(model.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def evictable_from(asked: DisruptionBudget) -> int:
    """Return the replicas, all of them Ready, from which on the budget lets one go.

    Kubernetes rounds shares of pods up: those that have to stay, and those that may be missing.
    """
    kept = asked.min_available
    if kept is None:
        return 1
    if isinstance(kept, int):
        return kept + 1
    return -(-100 // (100 - int(kept.removesuffix("%"))))


def network_policy(
    model: ModelDeployment, asked: EngineNetwork, site: Site, num_nodes: int = 1
) -> Manifest:
    """Return the policy: only clients and scrapers come in, and what goes out may be bounded.

    A rule without peers would let everybody in, so it is left out where there is nobody to let in.
    Pods of a replica over several nodes reach each other on ports that are found when they start.
    """
    namespaces = list(site.scraper_namespaces)
    named = {"key": NAMESPACE_NAME_LABEL, "operator": "In", "values": namespaces}
    scrapers = {"namespaceSelector": {"matchExpressions": [named]}}
    peers = [*([scrapers] if namespaces else []), *map(_peer, asked.clients)]
    ingress: list[Manifest] = [{"from": peers, "ports": [_port(HTTP_PORT)]}] if peers else []
    has_egress = asked.egress_ports is not None
    dns = [_port(DNS_PORT, "UDP"), _port(DNS_PORT)]
    egress: list[Manifest] = [{"ports": [*dns, *map(_port, asked.egress_ports or ())]}]
    if num_nodes > 1:
        ingress.append({"from": [_own_pods(model)]})
        egress.append({"to": [_own_pods(model)]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata_of(model),
        "spec": {
            "podSelector": {"matchLabels": selector(model.name)},
            "policyTypes": ["Ingress", *(["Egress"] if has_egress else [])],
            **({"ingress": ingress} if ingress else {}),
            **({"egress": egress} if has_egress else {}),
        },
    }


def _own_pods(model: ModelDeployment) -> Manifest:
    return {"podSelector": {"matchLabels": selector(model.name)}}


def _peer(peer: Peer) -> Manifest:
    selectors = {"namespaceSelector": peer.namespace_selector, "podSelector": peer.pod_selector}
    return {name: {"matchLabels": dict(each)} for name, each in selectors.items() if each}


def _port(number: int, protocol: str = "TCP") -> Manifest:
    return {"port": number, "protocol": protocol}


DISRUPTION_BUDGET = "DisruptionBudget"


def evictable(model: ModelDeployment) -> tuple[int, str] | None:
    """Return the replicas from which on one may go, and what says so; None: any number, or none.

    Where that is more than maxReplicas no number helps.
    """
    rule = _eviction_rule(model)
    return None if rule is None or rule[0] > model.spec.scaling.max_replicas else rule


def pdb_blocks_eviction(model: ModelDeployment) -> tuple[Reason, ...]:
    """Say that a budget lets no replica go, however many there may be."""
    rule, most = _eviction_rule(model), model.spec.scaling.max_replicas
    if rule is None or rule[0] <= most:
        return ()
    message = f"no node with a replica can be drained: {rule[1]}, maxReplicas allows {most}"
    return (Reason(code=DISRUPTION_BUDGET, message=message),)


def _eviction_rule(model: ModelDeployment) -> tuple[int, str] | None:
    pods = model.spec.pods
    asked = pods.disruption_budget if pods else None
    if asked is None or asked.min_available is None:
        return None
    least = evictable_from(asked)
    field = f"pods.disruptionBudget.minAvailable {asked.min_available}"
    return least, f"{field} allows an eviction from {count_of(least, 'replica')} on"
