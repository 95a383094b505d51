"""A plan as what the operator would apply for it: manifests, and the line that a container runs."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tonnage.api.status import Reason
from tonnage.cli.results.planning import CANNOT_RUN, Planned, Refused
from tonnage.manifests.arguments import LEADER, RANK
from tonnage.manifests.children import NotServableError, Site, deployment, pod_monitor, service
from tonnage.manifests.names import WORKLOADS, Manifest, num_nodes_in, template_in
from tonnage.manifests.pod import drain_time_s, longest_answer
from tonnage.manifests.protection import protections
from tonnage.units import count_of

FILE_SITE: Final = Site(has_pod_monitors=True, scrape_interval_s=15)
"""Any cluster, where none is asked: files are compared for the same, whatever it offers."""


def template_manifest(
    planned: Planned, site: Site, *, running_drain_s: int | None = None
) -> Manifest:
    """Return the workload that would be applied, without replicas: those go through ``/scale``.

    ``running_drain_s``: what the pods that run have to finish; it stays while it is enough.

    Raises:
        NotServableError: the plan holds on paper, but there is no manifest for it.
    """
    answer = longest_answer(planned.deployment.spec, planned.sizing)
    drain_s = drain_time_s(answer, running_s=running_drain_s)
    return deployment(planned.deployment, planned.sizing, site, drain_s=drain_s)


def children(planned: Planned, site: Site) -> Iterator[Manifest]:
    """Yield what would be applied for an object; nothing for one that scales a foreign Deployment.

    An object of a file has no uid, so it cannot be named as the owner.
    """
    model = planned.deployment
    if model.spec.scale_target:
        return
    workload = template_manifest(planned, site)
    num_nodes = num_nodes_in(workload)
    made = [each for each in protections(model, site, num_nodes).values() if each]
    made += [workload, service(model, num_nodes)]
    made += [pod_monitor(model, site, num_nodes)] if site.has_pod_monitors else []
    for manifest in made:
        if not model.uid:
            del manifest["metadata"]["ownerReferences"]
        yield manifest


def serve_line(planned: Planned, site: Site) -> str | None:
    """Return the ``vllm serve`` line of one replica, for a shell; None for a scale target.

    Over several nodes there is a second line, for each node but the first, and words in capitals
    stand for what the group of pods says.
    """
    if planned.deployment.spec.scale_target:
        return None
    made = template_manifest(planned, site)
    templates = WORKLOADS[made["kind"]].templates(template_in(made))
    containers = [each["spec"]["containers"][0] for each in templates]
    lines = (shlex.join([*each["command"], *each["args"]]) for each in containers)
    text = "\n".join(lines)
    return text.replace(f"'{LEADER}'", "LEADER_ADDRESS").replace(f"'{RANK}'", "NODE_RANK")


def servable(answer: Planned | Refused, site: Site) -> Planned | Refused:
    """Return the answer, or why the operator would refuse what the arithmetic allows."""
    if isinstance(answer, Refused) or answer.deployment.spec.scale_target:
        return answer
    most = answer.deployment.spec.scaling.max_replicas
    if answer.replicas > most:
        message = (
            f"{count_of(answer.replicas, 'replica')}, of which one ModelDeployment has at most "
            f"{most}"
        )
        return Refused(deployment=answer.deployment, code="MaxReplicas", message=message)
    try:
        template_manifest(answer, site)
    except NotServableError as error:
        return Refused(deployment=answer.deployment, code="NotServable", message=str(error))
    return answer


def with_obstacle(planned: Planned) -> Planned:
    """Return the plan; where it holds on paper only, with what is missing to run it."""
    found = servable(planned, FILE_SITE)
    if isinstance(found, Planned):
        return planned
    reason = Reason(code=CANNOT_RUN, message=f"the operator cannot run it: {found.message}")
    return replace(planned, reasons=(*planned.reasons, reason))
