"""Prefill and decode on a site: two objects, or one, and a proxy that sends requests to both."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from site_lab import Object, Site, Tenant, a_model, a_site, until
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import ServiceRef

ROLES = ("prefill", "decode")
TICK_S = 2
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 400
TRANSFER_S = 0.02
"""Of a prompt: 160 MB of cache at 8 GB/s."""
TTFT_S, TPOT_S = 2.0, 0.05
TTFT = {"timeToFirstToken": {"p95": f"{TTFT_S:g}s"}}
TPOT = {"timePerOutputToken": {"p95": f"{1000 * TPOT_S:g}ms"}}
SLO = {"prefill": TTFT, "decode": TTFT | TPOT}
TRUTH = {
    "load_s": 1,
    "step": {"gpu": "H200"},
    "transfer_s_per_token": TRANSFER_S / PROMPT_TOKENS,
}
SETTINGS = {"tickS": TICK_S, "coldStartS": 5, "scaleDownWindowS": 20, "statusIntervalS": 2}


def a_role(role: str, requests_per_s: float, **spec: Any) -> Object:
    """Return the ModelDeployment of a role; ``spec`` overrides."""
    usual: Object = {
        "slo": SLO[role],
        "demand": {
            "requestsPerSecond": str(requests_per_s),
            "promptTokens": {"mean": PROMPT_TOKENS},
            "outputTokens": {"mean": OUTPUT_TOKENS, "p99": OUTPUT_TOKENS},
            "cacheTransfer": f"{TRANSFER_S:g}s",
        },
        "hardware": {"gpu": "H200", "parallelism": {"tensor": 1}},
        "scaling": {"maxReplicas": 6},
        "engine": {"version": "0.33", "role": role},
    }
    return a_model(role, **(usual | spec))


@contextmanager
def a_site_of_roles(folder: Path, programs: Mapping[str, Path]) -> Iterator[Site]:
    with a_site(folder, programs, truth=TRUTH, scrape_interval_s=TICK_S, settings=SETTINGS) as made:
        yield made


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Both roles of one namespace, and the load on them."""

    tenant: Tenant
    load: LoadControl
    prefix: str = ""
    """Of the objects of both roles, where one object has them made."""

    def replicas(self) -> tuple[int, ...]:
        return tuple(self.tenant.replicas(self.prefix + role) or 0 for role in ROLES)

    def are_ready(self) -> bool:
        ready = tuple(self.tenant.num_ready(self.prefix + role) for role in ROLES)
        return ready == self.replicas()

    def status(self, role: str) -> Object:
        return self.tenant.status(self.prefix + role)

    def measured(self, role: str, name: str) -> float | None:
        found = self.status(role).get("measured", {}).get(name)
        return None if found is None else float(found["value"])

    def reasons(self, role: str) -> dict[str, str]:
        """Return the reasons of the plan by their codes."""
        plan = self.status(role).get("plan", {})
        return {each["code"]: each["message"] for each in plan.get("reasons", ())}

    def failed(self) -> list[str]:
        return [each.error for each in self.load.records if not each.is_complete]


@contextmanager
def both_loaded(
    tenant: Tenant, *, requests_per_s: float, **specs: Mapping[str, Any]
) -> Iterator[Roles]:
    """Apply both roles, and load them; those in flight are waited for in the end.

    ``specs``: what overrides the spec of a role.
    """
    given = {role: specs.get(role, {}) for role in ROLES}
    tenant.apply(*(a_role(role, requests_per_s, **spec) for role, spec in given.items()))
    with loaded(tenant, requests_per_s) as made:
        yield made


@contextmanager
def one_loaded(tenant: Tenant, *, requests_per_s: float) -> Iterator[Roles]:
    """Apply one object with both roles, and load them."""
    spec = a_role("decode", requests_per_s)["spec"]
    del spec["engine"]["role"], spec["demand"]["cacheTransfer"]
    tenant.apply(a_model("both", **spec | {"topology": {"kvLink": "16GB/s"}}))
    with loaded(tenant, requests_per_s, prefix="both-") as made:
        yield made


@contextmanager
def loaded(tenant: Tenant, requests_per_s: float, *, prefix: str = "") -> Iterator[Roles]:
    """Load both roles once a replica of each is Ready."""
    for role in ROLES:
        until(partial(tenant.num_ready, prefix + role), f"a replica of {role} is Ready")
    services = {role: ServiceRef(namespace=tenant.namespace, name=prefix + role) for role in ROLES}
    target = LoadTarget(
        kubeconfig=tenant.site.plane.kubeconfig,
        service=services["decode"],
        prefill=services["prefill"],
    )
    shape = RequestShape(
        model="meta-llama/Llama-3.3-70B-Instruct",
        prompt=LengthDistribution(mean_tokens=PROMPT_TOKENS),
        output=LengthDistribution(mean_tokens=OUTPUT_TOKENS),
    )
    with background_load(target, shape) as control:
        control.requests_per_s = requests_per_s
        made = Roles(tenant=tenant, load=control, prefix=prefix)
        until(
            lambda: all(made.measured(role, "requestsPerSecond") for role in ROLES),
            "both roles are measured",
        )
        yield made


def set_transfer(site: Site, seconds_of_a_prompt: float) -> None:
    """Let transfers take another time from now on, in engines that run too."""
    file = site.plane.folder / "runner" / "truth.json"
    before = file.read_text()
    new = json.loads(before) | {"transfer_s_per_token": seconds_of_a_prompt / PROMPT_TOKENS}
    with file.open("r+") as opened:  # pods have this very file mounted, and may read it meanwhile
        opened.write(json.dumps(new).ljust(len(before)))
