"""A real engine as a pod of the lab, under traffic that the operator learns from."""

import os
import re
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import requests
from vllm_cpu_figures import LONGEST

from tonnage_lab import controlplane, cpu_class, site, vllm_cpu, vllm_entry, vllm_site
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import ServiceRef, ready_endpoints
from tonnage_lab.processes import wait_until
from tonnage_lab.progress import Step
from tonnage_lab.vllm_site import RealSite

NAMESPACE = "default"
READY_S = 900.0
CRDS = Path(__file__).parents[2] / "crds"
PHASE_S = 60.0
SHARES = (0.2, 0.6, 0.9, 0.4, 0.8)
"""Of what one replica is planned to serve, one after the other: the batches that arise differ."""
POLL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Lab:
    """One replica that is Ready."""

    plane: ControlPlane
    real: RealSite

    @property
    def name(self) -> str:
        return str(self.real.manifest["metadata"]["name"])

    def object(self) -> dict[str, Any]:
        """Return the ModelDeployment as it is now."""
        return dict(self.plane.kubectl.get("mdep", self.name, "-n", NAMESPACE))

    @property
    def engine_url(self) -> str:
        (endpoint,) = ready_endpoints(
            self.plane.kubectl.get(
                "endpointslices", "-n", NAMESPACE, "-l", f"kubernetes.io/service-name={self.name}"
            )["items"]
        )
        return endpoint.url

    @property
    def reported_kv_tokens(self) -> int:
        """Return what the engine itself says of its cache."""
        page = requests.get(f"{self.engine_url}/metrics", timeout=30).text
        (tokens,) = set(re.findall(r'kv_cache_size_tokens="(\d+)"', page))
        return int(tokens)


@contextmanager
def only_on(cores: Collection[int]) -> Iterator[None]:
    """Run what the block does, and whatever it starts, on some cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def one_engine(core: int) -> RealSite:
    """Return the site of one engine on a core, which nothing can scale or replace."""
    python = vllm_cpu.ensure()
    with only_on({core}):
        figures = cpu_class.probe(python)
    real = vllm_site.site_of(python, figures, num_cores=1)
    program = vllm_site.engine_program(python)
    engine = replace(program, environment={**program.environment, vllm_entry.CORES: str(core)})
    spec = real.manifest["spec"]
    scaling = {**spec["scaling"], "maxReplicas": 1}
    return replace(
        real,
        config=replace(real.config, engine=engine),
        manifest={**real.manifest, "spec": {**spec, "scaling": scaling}},
    )


@contextmanager
def a_lab(real: RealSite, step: Step) -> Iterator[Lab]:
    """Start everything, and stop it in the end."""
    with tempfile.TemporaryDirectory(prefix="tonnage-real-") as folder:
        plane = controlplane.start(Path(folder), crds=CRDS, step=step)
        try:
            site.start(plane, real.config, step=step)
            plane.kubectl.apply(
                {**each, "metadata": {"namespace": NAMESPACE, **each["metadata"]}}
                for each in (real.model_config_map, real.manifest)
            )
            lab = Lab(plane=plane, real=real)
            with step("waiting for the engine"):
                wait_until(
                    lambda: is_ready(lab.object()), what="Ready", timeout_s=READY_S, needs={}
                )
            yield lab
        finally:
            plane.stop()


def is_ready(found: dict[str, Any]) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def mixed_traffic(
    lab: Lab, minutes: Sequence[float], control: LoadControl
) -> Iterator[dict[str, Any]]:
    """Load the Service at changing rates, and yield the object after so many minutes each."""
    demand = lab.real.manifest["spec"]["demand"]
    shape = RequestShape(
        model=lab.real.manifest["spec"]["model"]["id"],
        prompt=varied(demand["promptTokens"]["mean"]),
        output=varied(demand["outputTokens"]["mean"]),
    )
    target = LoadTarget(
        kubeconfig=lab.plane.kubeconfig, service=ServiceRef(namespace=NAMESPACE, name=lab.name)
    )
    with background_load(target, shape, control):
        began_s = time.monotonic()
        for until_min in minutes:
            while (passed_s := time.monotonic() - began_s) < 60 * until_min:
                share = SHARES[int(passed_s / PHASE_S) % len(SHARES)]
                control.requests_per_s = share * lab.real.sizing.goodput_requests_per_s
                time.sleep(POLL_S)
            yield lab.object()


def varied(mean_tokens: float) -> LengthDistribution:
    return LengthDistribution(mean_tokens=mean_tokens, exponential=True, maximum_tokens=LONGEST)
