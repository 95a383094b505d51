"""The operator's container ends and is started again, as a kubelet does: by whom it is led then."""

import site_lab
from site_lab import NAMESPACE, a_model
from tonnage.cluster.kube import LEASES
from tonnage.cluster.lease import NAME

pytestmark = site_lab.pytestmark
OF_LEADING = ("holderIdentity", "acquireTime", "leaseTransitions")


def leading(site):
    """Return who leads, since when, and after how many others."""
    lease = site.api.get(LEASES.path(NAMESPACE, NAME))
    return {field: lease["spec"].get(field) for field in OF_LEADING}


def test_the_next_process_of_the_pod_leads_from_its_first_look_at_the_lease(quick_site, tenant):
    tenant.apply(a_model())
    tenant.wait_ready()
    before, waits = leading(quick_site), quick_site.operator_log().count("not leading")
    num_restarts = quick_site.kill_operator()
    tenant.change(scaling={"minReplicas": 2, "maxReplicas": 4})
    tenant.wait_ready(replicas=2)

    assert quick_site.operator_state()["restartCount"] == num_restarts + 1
    assert leading(quick_site) == before
    assert quick_site.operator_log().count("not leading") == waits, "it looked before it ticked"
