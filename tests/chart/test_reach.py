"""How far the chart's policies hold the operator's own account: what they look at, and where."""

import pytest

pytestmark = pytest.mark.lab

WRITES = {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE", "delete": "DELETE"}
NOT_LOOKED_AT = {"configmaps", "events", "leases", "modeldeployments/status"}


def rules_of(manifests, kinds, *, ending):
    """Rules of the roles or policies whose name ends so; ``ending`` empty: of the account."""
    for manifest in manifests:
        name = manifest["metadata"]["name"]
        if manifest["kind"] in kinds and not name.endswith((".view", ".edit")):
            if manifest["kind"] != "ValidatingAdmissionPolicy":
                yield from manifest["rules"]
            elif ending in name:
                yield from manifest["spec"]["matchConstraints"]["resourceRules"]


def test_the_policies_look_at_every_write_of_the_account_but_these(helm):
    manifests = helm.template()
    granted = {
        (resource, WRITES[verb])
        for rule in rules_of(manifests, ("Role", "ClusterRole"), ending="")
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb in WRITES
    }
    looked_at = {
        (resource, operation)
        for rule in rules_of(manifests, ("ValidatingAdmissionPolicy",), ending=".own")
        for resource in rule["resources"]
        for operation in rule["operations"]
    }

    # Of a scale the policy looks at the change: nobody creates one.
    assert {resource for resource, _ in granted - looked_at} == NOT_LOOKED_AT


@pytest.mark.parametrize(
    ("namespaces", "is_kept_out"), [([], True), (["team"], True), (["tonnage-system"], False)]
)
def test_the_policy_keeps_it_out_of_its_own_namespace_unless_the_settings_list_it(
    helm, namespaces, is_kept_out
):
    [own] = [
        each
        for each in helm.template(
            rbac={"scope": "namespaced" if namespaces else "cluster"},
            settings={"namespaces": namespaces},
        )
        if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"].endswith(".own")
    ]
    asked = [rule["expression"] for rule in own["spec"]["validations"]]

    assert ("request.namespace != 'tonnage-system'" in asked) == is_kept_out
    assert "!request.namespace.startsWith('kube-')" in asked
