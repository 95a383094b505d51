"""No alert fires while the lab lives through the demo's load, over and over, for an hour.

    TONNAGE_SILENCE_S=1200 pytest -m alerts tests/alerts/test_live_silence.py

The operator runs from its chart on the built control plane with emulated engines, as in the demo; a
Prometheus beside it scrapes the operator's page and evaluates the rules with the chart's own times.
"""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import yaml

import site_lab
from alerting import PROGRAM, alerting, rules_of_chart
from site_lab import Site, Tenant, a_site_of, a_tenant, rounded, show, until
from tonnage.units import HOUR_S
from tonnage_lab import assets, site
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape, attainment
from tonnage_lab.load_endpoints import ServiceRef
from tonnage_lab.scenario import EngineKind, Stage, set_up

pytestmark = [
    pytest.mark.alerts,
    *site_lab.pytestmark,
    pytest.mark.skipif(PROGRAM is None, reason="needs prometheus: python -m tonnage_lab builds it"),
]
DURATION_S = float(os.environ.get("TONNAGE_SILENCE_S", HOUR_S))
EVERY_S = 5
TITLE = "Silence: the demo's load, round after round"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What happened."""

    alerts_url: str
    lasted_s: float
    load: LoadControl
    most_replicas: int
    stage: Stage

    def ask(self, query: str) -> dict[str, float]:
        """Return {alert: value} of a query over the whole time, series of one alert together."""
        expression = f"max by (alertname) ({query.format(over=f'{self.lasted_s + 60:.0f}s')})"
        found = requests.get(
            f"{self.alerts_url}/api/v1/query", params={"query": expression}, timeout=10
        ).json()["data"]["result"]
        return {each["metric"].get("alertname", ""): float(each["value"][1]) for each in found}


@contextmanager
def loaded(tenant: Tenant, stage: Stage) -> Iterator[LoadControl]:
    """Send the demo's requests to its object."""
    prompt, output = stage.example.lengths
    model = stage.example.model
    target = LoadTarget(
        kubeconfig=tenant.site.plane.kubeconfig,
        service=ServiceRef(namespace=tenant.namespace, name=model.name),
    )
    shape = RequestShape(
        model=model.spec.model.id,
        prompt=LengthDistribution(mean_tokens=prompt),
        output=LengthDistribution(mean_tokens=output),
    )
    with background_load(target, shape) as control:
        yield control


def live(tenant: Tenant, stage: Stage, control: LoadControl) -> int:
    """Go through the demo's phases until the time is up; return the most replicas seen."""
    most, ends_s = 0, time.monotonic() + DURATION_S
    for lasts_s, factor, _ in itertools.cycle(stage.phases):
        control.requests_per_s = factor * stage.example.requests_per_s
        phase_ends_s = min(time.monotonic() + lasts_s, ends_s)
        while time.monotonic() < phase_ends_s:
            most = max(most, tenant.replicas(stage.example.model.name) or 0)
            time.sleep(1)
        if phase_ends_s == ends_s:
            return most
    raise AssertionError("phases do not end")


def page_of(made: Site) -> str:
    values = yaml.safe_load((made.plane.folder / "values.yaml").read_text())
    return f"http://127.0.0.1:{values['settings']['probePort']}"


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Lived]:
    folder, stage = tmp_path_factory.mktemp("silence"), set_up(EngineKind.EMULATOR, _silent)
    rules = rules_of_chart(folder)
    with (
        a_site_of(folder / "site", assets.ensure(), site.STANDARD) as made,
        a_tenant(made) as tenant,
        alerting(folder, page_of(made), rules, every=f"{EVERY_S}s") as url,
    ):
        manifest: dict[str, Any] = dict(stage.example.manifest)
        manifest["metadata"] = {**manifest["metadata"], "namespace": tenant.namespace}
        tenant.apply(manifest)
        name = stage.example.model.name
        until(lambda: tenant.num_ready(name), "a replica is Ready", told=lambda: tenant.told(name))
        with loaded(tenant, stage) as control:
            began_s = time.monotonic()
            most = live(tenant, stage, control)
            lasted_s = time.monotonic() - began_s
            found = Lived(
                alerts_url=url, lasted_s=lasted_s, load=control, most_replicas=most, stage=stage
            )
            show(pytestconfig, TITLE, figures(found), folder)
        yield found


def _silent(_: str) -> Any:
    raise AssertionError("emulated engines need nothing installed")


def figures(found: Lived) -> dict[str, Any]:
    ttft_s, tpot_s = found.stage.example.limits_s
    records = list(found.load.records)
    pending = found.ask('count_over_time(ALERTS{{alertstate="pending"}}[{over}])')
    return {
        "lasted_s": round(found.lasted_s),
        "requests": len(records),
        "failed": sum(not each.is_complete for each in records),
        "within_slo": rounded(attainment(records, ttft_s=ttft_s, tpot_s=tpot_s)),
        "most_replicas": found.most_replicas,
        "seconds_pending_by_alert": {name: EVERY_S * count for name, count in pending.items()},
        "firing": found.ask('count_over_time(ALERTS{{alertstate="firing"}}[{over}])'),
    }


def test_the_load_was_one_that_moves_the_fleet(lived: Lived):
    assert lived.lasted_s >= DURATION_S
    assert lived.most_replicas > 1
    assert len(lived.load.records) > lived.stage.example.requests_per_s * lived.lasted_s / 2


def test_the_alerts_were_looked_at_all_the_time(lived: Lived):
    scrapes = lived.ask("count_over_time(tonnage_tick_age_seconds[{over}])")

    assert scrapes[""] > 0.9 * lived.lasted_s / EVERY_S


def test_no_alert_fired(lived: Lived):
    assert lived.ask('count_over_time(ALERTS{{alertstate="firing"}}[{over}])') == {}
