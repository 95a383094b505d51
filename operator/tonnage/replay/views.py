"""A cluster as the operator's loop sees it."""

from typing import Final

from tonnage.control.input.state import DeploymentView, ModelView, PodView
from tonnage.replay.cluster import SimulatedCluster

EPOCH_S: Final = 1_767_225_600.0
"""Unix time at which the traffic of a simulation begins: 2026-01-01T00:00:00Z."""


def model_view(cluster: SimulatedCluster) -> ModelView:
    model = cluster.model
    return ModelView(
        namespace=model.namespace,
        name=model.name,
        uid=model.uid,
        generation=model.generation,
        created="",
        manifest="{}",
        status="{}",
        is_deleting=False,
    )


def deployment_view(cluster: SimulatedCluster, at_s: float) -> DeploymentView | None:
    """Return the Deployment; None before the first template."""
    template = cluster.template
    if template is None:
        return None
    model, kept = cluster.model, cluster.remaining_pods
    return DeploymentView(
        namespace=model.namespace,
        name=model.name,
        uid=f"deployment-of-{model.uid}",
        owner_uid=model.uid,
        is_opted_in=True,
        replicas=cluster.replicas,
        generation=cluster.generation,
        observed_generation=cluster.generation,
        ready=cluster.num_ready(at_s),
        updated=sum(pod.flags == template.flags for pod in kept),
        total=len(kept),
        digest=template.digest,
        flags=template.flags_text,
        arguments=(),
        image="",
        gpus_per_replica=template.machine.num_gpus,
        template_managers=frozenset(),
        template_digest=template.flags_text,
        pod_spec_digest=template.flags_text,
        problems=(),
    )


def pod_views(cluster: SimulatedCluster, at_s: float) -> tuple[PodView, ...]:
    """Return the pods that are there at a time."""
    return tuple(
        PodView(
            namespace=cluster.model.namespace,
            name=pod.name,
            uid=pod.name,
            replica_set_uid=f"replica-set-of-{cluster.model.uid}",
            is_ready=pod.ready_s <= at_s,
            is_deleting=pod.deleted_s <= at_s,
            created_at_s=EPOCH_S + pod.created_s,
            scheduled_at_s=EPOCH_S + pod.created_s,
            was_ready=False,
            has_restarted=False,
            ready_at_s=EPOCH_S + pod.ready_s if pod.ready_s <= at_s else None,
            unschedulable=None,
            trouble=None,
        )
        for pod in cluster.live
    )
