"""Late requests that no replica mends: the fleet does not grow, and the condition says why.

Engines are as believed but for one thing: one request in seven has a long prompt, the server holds
each request, or one of three pods is slow.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import kind_lab
import site_lab
from site_lab import NAME, Tenant, a_model, a_site, a_tenant, until
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import ServiceRef

pytestmark = [*site_lab.pytestmark, pytest.mark.thorough]

SCRAPE_S = 5
"""Four of them are a window: 9 long prompts come in it, of which chance makes 3 more or fewer."""
SETTINGS = {
    "tickS": 2, "coldStartS": 5, "scaleDownWindowS": 600, "statusIntervalS": 2, "speedRange": 0
}  # fmt: skip
SHORT, LONG, ANSWER = 200, 11_000, 100
LONG_SHARE = 0.15
WATCHED_S = 60.0
"""A fleet whose capacity was lowered would have grown: each step asks for one replica more."""
SMALL, LARGE = (
    {"id": f"meta-llama/{name}", "weights": weights}
    for name, weights in (("Llama-3.1-8B-Instruct", "auto"), ("Llama-3.3-70B-Instruct", "fp8"))
)


@dataclass(frozen=True, kw_only=True)
class World:
    slo: dict[str, Any]
    model: dict[str, str]
    requests_per_s: float
    replicas: int = 1
    long_share: float = 0.0
    truth: dict[str, Any] = field(default_factory=dict)
    slow: dict[str, Any] = field(default_factory=dict)
    """Of the step of the first pod."""

    def manifest(self) -> dict[str, Any]:
        """Return the object; nobody said how long the longest prompts are."""
        mean = round((1 - self.long_share) * SHORT + self.long_share * LONG)
        return a_model(
            model=self.model,
            contextLength=16_384,
            slo=self.slo,
            demand={
                "requestsPerSecond": self.requests_per_s,
                "promptTokens": {"mean": mean, "p99": 2 * mean},
                "outputTokens": {"mean": ANSWER},
            },
            scaling={"maxReplicas": 8},
        )


WORLDS = {
    "LongPrompts": World(
        # A bound of vLLM's histogram: between two of them, who is late is interpolated.
        slo={"timeToFirstToken": {"p95": "250ms"}},
        model=SMALL,
        requests_per_s=3,
        long_share=LONG_SHARE,
    ),
    "ServerDelay": World(
        slo={"timeToFirstToken": {"p95": "1s"}},
        model=SMALL,
        requests_per_s=3,
        truth={"server_s": 1.2},
    ),
    "SlowPod": World(
        slo={"timeToFirstToken": {"p95": "4s"}, "timePerOutputToken": {"p95": "60ms"}},
        model=LARGE,
        requests_per_s=4,
        replicas=3,
        slow={"bandwidth_efficiency": 0.2},
    ),
}


@contextmanager
def loaded(tenant: Tenant, world: World) -> Iterator[None]:
    """Send both kinds of requests."""
    target = LoadTarget(
        kubeconfig=tenant.site.plane.kubeconfig,
        service=ServiceRef(namespace=tenant.namespace, name=NAME),
    )
    with ExitStack() as stack:
        for seed, (tokens, share) in enumerate(
            [(SHORT, 1 - world.long_share), (LONG, world.long_share)]
        ):
            if share:
                shape = RequestShape(
                    model=world.model["id"],
                    prompt=LengthDistribution(mean_tokens=tokens),
                    output=LengthDistribution(mean_tokens=ANSWER),
                    seed=seed,
                )
                control = LoadControl(requests_per_s=share * world.requests_per_s)
                stack.enter_context(background_load(target, shape, control))
        yield


@pytest.mark.skipif(kind_lab.on_kind(), reason="the truth of engines is a part of their image")
@pytest.mark.parametrize("cause", WORLDS)
def test_the_fleet_stays_and_the_condition_names_the_cause(
    cause: str, tmp_path: Path, programs: dict[str, Path]
) -> None:
    world = WORLDS[cause]
    truth = {"load_s": 0.5, "step": {"gpu": "H200"}, **world.truth}
    first = truth | {"step": {**truth["step"], **world.slow}}
    with (
        a_site(
            tmp_path, programs, truth=first, scrape_interval_s=SCRAPE_S, settings=SETTINGS
        ) as site,
        a_tenant(site) as tenant,
    ):
        tenant.apply(world.manifest())
        tenant.wait_ready()
        # Of engines that start from now on.
        (site.plane.folder / "runner" / "truth.json").write_text(json.dumps(truth))
        tenant.change(scaling={"minReplicas": world.replicas})
        tenant.wait_ready(replicas=world.replicas)
        with loaded(tenant, world):
            until(
                lambda: tenant.condition("SLOMet").get("reason") == cause,
                "the cause is named", timeout_s=120, told=tenant.told,
            )  # fmt: skip
            named_s, replicas, reasons = time.time(), set[int](), Counter[str]()
            while time.time() - named_s < WATCHED_S:
                replicas.add(tenant.replicas() or 0)
                reasons[tenant.condition("SLOMet").get("reason", "")] += 1
                time.sleep(1)

    assert replicas == {world.replicas}
    assert reasons.most_common(1)[0][0] == cause, reasons
