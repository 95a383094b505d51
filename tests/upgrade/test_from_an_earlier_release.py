"""An upgrade from an earlier commit's chart, CRD and program, with twenty objects under load.

    pytest -m upgrade tests/upgrade

One fixture drives the run, back and forth, and records it; each test is a claim about the record.
Every engine is a process, so that one that is replaced is another process.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import earlier
import site_lab
from helm import CHART, NAMESPACE
from site_lab import CRDS, OPERATOR, a_model, until
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestShape
from tonnage_lab.load_endpoints import ServiceRef
from upgrade_lab import ELSEWHERE, NEW, OLD, Record, an_old_site

NO_COMMIT = earlier.obstacle()
pytestmark = [
    pytest.mark.upgrade,
    *site_lab.pytestmark,
    pytest.mark.skipif(NO_COMMIT is not None, reason=str(NO_COMMIT)),
]

NAMES = [f"model-{number:02}" for number in range(20)]
EACH_PER_S = 0.3


@contextmanager
def under_load(record: Record) -> Iterator[None]:
    """Send requests to every object until the end, and keep what became of them."""
    began_s = time.time()
    with ExitStack() as stack:
        for seed, name in enumerate(NAMES):
            target = LoadTarget(
                kubeconfig=record.site.plane.kubeconfig,
                service=ServiceRef(namespace=record.tenant.namespace, name=name),
            )
            shape = RequestShape(
                model=a_model()["spec"]["model"]["id"],
                prompt=LengthDistribution(mean_tokens=500),
                output=LengthDistribution(mean_tokens=100),
                seed=seed,
            )
            each = LoadControl(requests_per_s=EACH_PER_S)
            record.loads.append(stack.enter_context(background_load(target, shape, each)))
        yield
        record.load_s = (began_s, time.time())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Old, CRD, new, back, new, gone, elsewhere: with a picture after each step."""
    folder = tmp_path_factory.mktemp("upgrade")
    with an_old_site(folder) as driver:
        record, kubectl = driver.record, driver.record.site.plane.kubectl
        driver.release(driver.old_chart, OLD)
        record.tenant.apply(*(a_model(name, scaling={"maxReplicas": 1}) for name in NAMES))
        for name in NAMES:
            record.tenant.wait_ready(name)
        with under_load(record):
            driver.watched("old")
            kubectl("apply", "--server-side", "-f", CRDS)
            driver.watched("crd")
            driver.release(CHART, NEW)
            driver.watched("new")
            began_s = time.time()
            driver.helm("rollback", "tonnage", "--namespace", NAMESPACE)
            old = {NAMESPACE: f"tonnage/operator:{OLD}"}
            until(lambda: record.operators() == old, "the old one alone runs", timeout_s=60)
            record.rollback_s = (began_s, time.time())
            driver.wait_for(OLD)
            driver.watched("back")
            driver.release(CHART, NEW)
            driver.watched("again")
            driver.helm("uninstall", "tonnage", "--namespace", NAMESPACE, "--wait")
            until(lambda: not record.operators(), "the operator is gone", timeout_s=60)
            driver.watched("gone")
            driver.release(CHART, NEW, namespace=ELSEWHERE)
            driver.watched("elsewhere")
        record.refused.extend(each for each in record.site.requests() if not each.is_allowed)
        return record


def test_it_is_the_operator_of_then_that_made_what_runs(run: Record):
    assert run.pictures["old"].operators == {NAMESPACE: f"tonnage/operator:{OLD}"}
    assert sorted(run.pictures["old"].replicas) == NAMES
    assert len(run.pictures["old"].processes) == len(NAMES)
    assert "operatorClass" not in run.pictures["old"].crd_fields


def test_the_upgraded_one_knows_what_is_new_and_looks_at_every_object(run: Record):
    assert "operatorClass" in run.pictures["crd"].crd_fields
    assert run.pictures["new"].operators == {NAMESPACE: f"tonnage/operator:{NEW}"}


@pytest.mark.parametrize("step", ["crd", "new", "back", "again", "gone", "elsewhere"])
def test_no_engine_restarts_and_no_template_changes(run: Record, step: str):
    before, after = run.pictures["old"], run.pictures[step]

    assert after.processes == before.processes
    assert after.generations == before.generations
    assert after.templates == before.templates
    assert after.replicas == before.replicas


@pytest.mark.parametrize("step", ["crd", "new", "back", "again", "gone", "elsewhere"])
def test_the_crd_stays_the_same_object(run: Record, step: str):
    assert run.pictures[step].crd_uid == run.pictures["old"].crd_uid


def test_nobody_but_the_operator_writes_and_it_writes_no_pods_and_no_deployments(run: Record):
    writes = run.writes("old", "again")
    told = {(each.user, each.resource, each.verb) for each in writes}

    assert {user for user, _, _ in told} == {OPERATOR}, told
    assert {resource for _, resource, _ in told} <= {
        "modeldeployments/status", "services", "events",
    }, told  # fmt: skip


def test_every_request_is_answered(run: Record):
    began_s, ended_s = run.load_s

    assert len(run.requests) > 0.8 * EACH_PER_S * len(NAMES) * (ended_s - began_s)
    assert [each for each in run.requests if not each.is_complete] == []


def test_the_operator_is_refused_nothing_while_it_is_installed(run: Record):
    """An uninstall takes its rights first; its last ticks then fail.

    So does a rollback, of rights that the old chart lacks: to Leases of other namespaces, and to
    the ConfigMaps of today.
    """
    back_s, old_s = run.rollback_s
    ends_s, gone_s = (run.pictures[step].at_s for step in ("again", "gone"))
    operators = {OPERATOR, OPERATOR.replace(NAMESPACE, ELSEWHERE)}
    refused = [each for each in run.refused if each.user in operators]

    assert [
        each
        for each in refused
        if not ends_s < each.asked_at_s < gone_s and not back_s < each.asked_at_s < old_s
    ] == []
