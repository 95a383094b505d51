"""A site on which the real controller of LeaderWorkerSets makes the groups."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import doc_blocks
import lws
from site_lab import CRDS, QUICK_TRUTH, Object, Site, Tenant, a_plane, a_site_on, until
from tonnage.cluster.kube import LEADER_WORKER_SETS, PODS
from tonnage.manifests.names import GROUPS, INDEX_LABEL, NAME_LABEL
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.site import GpuNode, SiteConfig

PAGE = doc_blocks.SITE / "pages/how-to/groups.md"
NAME = "deepseek-r1"
NUM_NODES = 2
"""Of each group."""


def the_model(**spec: Any) -> Object:
    """Return the ModelDeployment that the how-to page shows; ``spec`` overrides."""
    blocks = (each.text for each in doc_blocks.blocks(PAGE) if each.language == "yaml")
    [text] = [each for each in blocks if "kind:" in each]
    made: Object = yaml.safe_load(text)
    made["spec"] |= spec
    return made


@dataclass(frozen=True, kw_only=True)
class GroupSite:
    """A site, and the controller that a test may stop and start."""

    site: Site
    controller: lws.Controller


@contextmanager
def a_site_of_groups(
    folder: Path, programs: Mapping[str, Path], *, num_nodes: int, **truth: Any
) -> Iterator[GroupSite]:
    """Start a site with nodes of eight H100, LeaderWorkerSet installed before Tonnage."""
    manifests = lws.published(programs["kubectl"])
    crds = folder / "crds"
    shutil.copytree(CRDS, crds)
    lws.write_crds(manifests, crds)
    nodes = tuple(
        GpuNode(name=f"h100-{number}", product="NVIDIA-H100-80GB-HBM3", num_gpus=8)
        for number in range(num_nodes)
    )
    config = SiteConfig(
        nodes=nodes,
        truth=dict(QUICK_TRUTH) | truth,
        scrape_interval_s=1,
        settings={
            "tickS": 1,
            "coldStartS": 2,
            "scaleDownWindowS": 3,
            "statusIntervalS": 1,
            "pendingTimeoutS": 20,
        },
    )
    installed = []

    def install(plane: ControlPlane) -> None:
        installed.append(lws.install(plane, manifests))

    with a_site_on(a_plane(folder, programs, config, crds=crds, install=install)) as made:
        yield GroupSite(site=made, controller=installed[0])


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups of one object in a namespace."""

    tenant: Tenant
    name: str = NAME

    def live(self) -> Object:
        """Return the LeaderWorkerSet; empty where there is none."""
        return self.tenant.get(LEADER_WORKER_SETS, self.name) or {}

    def pods(self) -> dict[str, Object]:
        """Return the pods that are not going, by name."""
        found = self.tenant.all_of(PODS)
        return {
            each["metadata"]["name"]: each
            for each in found
            if each["metadata"].get("labels", {}).get(NAME_LABEL) == self.name
            and "deletionTimestamp" not in each["metadata"]
        }

    def ready_leaders(self) -> list[str]:
        pods = self.pods().items()
        return sorted(
            name
            for name, pod in pods
            if pod["metadata"]["labels"][INDEX_LABEL] == "0" and is_ready(pod)
        )

    def wait_ready(self, num_groups: int, *, timeout_s: float = 90) -> None:
        """Wait until so many groups serve, no more are there, and the status knows."""

        def is_there() -> bool:
            status = self.tenant.status(self.name)
            return (
                len(self.pods()) == num_groups * NUM_NODES
                and len(self.ready_leaders()) == num_groups
                and status.get("replicas", {}).get("ready") == num_groups
                and self.tenant.condition("Ready", self.name).get("status") == "True"
                and not self.tenant.condition("Reconciling", self.name)
            )

        until(is_there, f"{num_groups} groups serve", timeout_s=timeout_s, told=self.told)

    def told(self) -> str:
        pods = {
            name: (each["metadata"]["labels"], each.get("status", {}))
            for name, each in self.pods().items()
        }
        shown = {
            GROUPS.kind: self.live().get("status"),
            "pods": pods,
            "model": self.tenant.status(self.name),
        }
        return yaml.safe_dump(shown)


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
