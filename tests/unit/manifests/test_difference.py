"""Whether an apply would change a live object, in the API server's own words about its fields."""

import copy

import pytest

from tonnage.manifests.changes import differs, edits, removal_patch

WANTED = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {
        "name": "llama",
        "namespace": "serving",
        "labels": {"tonnage.dev/managed": "true"},
        "ownerReferences": [{"kind": "ModelDeployment", "name": "llama", "uid": "u-1"}],
    },
    "spec": {
        "type": "ClusterIP",
        "selector": {"tonnage.dev/model-deployment": "llama"},
        "ports": [{"name": "http", "port": 8000, "targetPort": "http"}],
    },
}
PORT = 'k:{"port":8000,"protocol":"TCP"}'
OWNED = {
    "f:metadata": {
        "f:labels": {"f:tonnage.dev/managed": {}},
        "f:ownerReferences": {'k:{"uid":"u-1"}': {}},
    },
    "f:spec": {
        "f:ports": {PORT: {".": {}, "f:name": {}, "f:port": {}, "f:targetPort": {}}},
        "f:selector": {},
        "f:type": {},
    },
}
LIVE = {
    **WANTED,
    "metadata": {
        **WANTED["metadata"],
        "uid": "u-2",
        "resourceVersion": "7",
        "managedFields": [{"manager": "tonnage", "operation": "Apply", "fieldsV1": OWNED}],
    },
    "spec": {
        "selector": {"tonnage.dev/model-deployment": "llama"},
        "ports": [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}],
        "clusterIP": "10.0.0.1",
        "type": "ClusterIP",
    },
    "status": {"loadBalancer": {}},
}
"""As the API server holds it: with defaults, and with who owns what."""


def changed(body, path, value):
    """A copy with one value set, or taken away where it is None."""
    made = copy.deepcopy(body)
    *parents, last = path
    node = made
    for name in parents:
        node = node[name]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return made


FIELDS = ("metadata", "managedFields", 0, "fieldsV1")


def test_defaults_of_the_server_are_no_difference():
    assert not differs(WANTED, LIVE, manager="tonnage")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "ports", 0, "targetPort"), "other"),
        (("spec", "ports"), [{"name": "http", "port": 9000, "targetPort": "http"}]),
        (("spec", "ports"), []),
        (("spec", "selector"), {"app": "theirs"}),
        (("spec", "selector"), None),
        (("spec", "type"), "ExternalName"),
        (("spec", "type"), "LoadBalancer"),
        (("metadata", "labels"), {}),
        (("metadata", "labels"), None),
        (("metadata", "labels", "tonnage.dev/managed"), "false"),
        (("metadata", "ownerReferences", 0, "name"), "other"),
        (("metadata", "managedFields"), None),
        (("metadata", "managedFields", 0, "manager"), "kubectl"),
        (("metadata", "managedFields", 0, "operation"), "Update"),
        ((*FIELDS, "f:spec", "f:ports"), None),
        ((*FIELDS, "f:spec", "f:ports", PORT, "f:targetPort"), None),
        ((*FIELDS, "f:spec", "f:selector"), None),
    ],
)
def test_what_somebody_changed_or_took_over_is_one(path, value):
    assert differs(WANTED, changed(LIVE, path, value), manager="tonnage")


@pytest.mark.parametrize(
    "path",
    [
        ("metadata", "labels", "release"),
        ("metadata", "annotations"),
        ("spec", "sessionAffinity"),
    ],
)
def test_what_we_applied_once_and_do_not_want_any_more_is_one(path):
    node = ("f:" + name for name in path)
    live = changed(LIVE, (*FIELDS, *node), {})

    assert differs(WANTED, live, manager="tonnage")


def test_so_is_an_element_of_a_list_that_we_applied_once():
    live = changed(LIVE, (*FIELDS, "f:spec", "f:ports", 'k:{"port":9}'), {"f:port": {}})

    assert differs(WANTED, live, manager="tonnage")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "sessionAffinity"), "ClientIP"),
        (("spec", "publishNotReadyAddresses"), False),
        (("metadata", "annotations"), {"mesh": "on"}),
        (("metadata", "labels"), {**LIVE["metadata"]["labels"], "team": "sre"}),
    ],
)
def test_what_somebody_added_beside_ours_is_none(path, value):
    assert not differs(WANTED, changed(LIVE, path, value), manager="tonnage")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "ports", 0, "targetPort"), "metrics"),
        (("spec", "ports", 0, "port"), 9000),
        (("spec", "ports"), [*WANTED["spec"]["ports"], {"name": "b", "port": 1}]),
        (("spec", "type"), "LoadBalancer"),
        (("metadata", "labels", "release"), "prometheus"),
    ],
)
def test_what_is_wanted_anew_is_one(path, value):
    assert differs(changed(WANTED, path, value), LIVE, manager="tonnage")


def test_a_list_that_is_one_value_holds_what_is_wanted_and_nothing_else():
    wanted = {
        "kind": "NetworkPolicy",
        "metadata": {"labels": {"a": "b"}},
        "spec": {"rules": [{"port": 1}]},
    }
    owned = {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {"f:rules": {}}}
    entry = {"manager": "tonnage", "operation": "Apply", "fieldsV1": owned}

    def live(*rules):
        metadata = {"labels": {"a": "b"}, "managedFields": [entry]}
        return {"metadata": metadata, "spec": {"rules": list(rules)}}

    assert not differs(wanted, live({"port": 1, "protocol": "TCP"}), manager="tonnage")
    assert differs(wanted, live({"port": 1}, {"port": 2}), manager="tonnage")
    assert differs(wanted, live({"port": 2}), manager="tonnage")
    assert differs(wanted, live(), manager="tonnage")


OURS = WANTED["spec"]["ports"][0]
METRICS = {"name": "metrics", "port": 9000, "targetPort": 9000, "protocol": "TCP"}


class TestWhatStandsInTheWay:
    def service(self, *ports):
        return changed(LIVE, ("spec", "ports"), list(ports))

    def budget(self, **spec):
        return {"kind": "PodDisruptionBudget", "metadata": {}, "spec": {"selector": {}, **spec}}

    def test_is_our_port_under_another_number(self):
        moved = OURS | {"port": 80, "protocol": "TCP"}

        assert removal_patch(WANTED, self.service(moved)) == {"ports": [OURS]}

    def test_is_a_port_that_somebody_added(self):
        live = self.service(OURS | {"protocol": "TCP"}, METRICS)

        assert removal_patch(WANTED, live) == {"ports": [OURS]}
        assert differs(WANTED, live, manager="tonnage")

    @pytest.mark.parametrize(
        ("field", "value", "patch"),
        [
            ("externalName", "a.example", {"externalName": None, "type": "ClusterIP"}),
            ("externalIPs", ["192.0.2.1"], {"externalIPs": None}),
            ("publishNotReadyAddresses", True, {"publishNotReadyAddresses": None}),
        ],
    )
    def test_is_what_leads_a_service_astray(self, field, value, patch):
        live = changed(LIVE, ("spec", field), value)

        assert removal_patch(WANTED, live) == patch
        assert differs(WANTED, live, manager="tonnage")

    def test_is_nothing_of_a_service_as_we_left_it(self):
        assert removal_patch(WANTED, LIVE) is None

    def test_is_the_other_bound_of_a_budget(self):
        patch = removal_patch(self.budget(maxUnavailable=1), self.budget(minAvailable=2))

        assert patch == {"minAvailable": None, "maxUnavailable": 1}

    def test_is_not_the_same_bound_with_another_value(self):
        assert removal_patch(self.budget(maxUnavailable=1), self.budget(maxUnavailable=2)) is None

    def test_is_not_looked_for_in_other_kinds(self):
        policy = {"kind": "NetworkPolicy", "metadata": {}, "spec": {}}

        assert removal_patch(policy, policy) is None


class TestEdits:
    """What others did, told from what we want otherwise than before."""

    def found(self, live, wanted=WANTED):
        return dict(edits(wanted, live, manager="tonnage"))

    def edited(self, field, value, owned=None):
        """By kubectl, which takes the field over."""
        live = changed(LIVE, ("spec", field), value)
        live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].pop(f"f:{field}", None)
        fields = {"f:spec": {f"f:{field}": owned or {}}}
        entry = {"manager": "kubectl", "operation": "Update", "fieldsV1": fields}
        live["metadata"]["managedFields"].append(entry)
        return live

    def test_are_none_where_it_is_as_we_left_it(self):
        assert self.found(LIVE) == {}

    def test_name_the_field_and_who_wrote_it(self):
        assert self.found(self.edited("selector", {"app": "theirs"})) == {
            "spec.selector": {"kubectl"}
        }

    def test_are_a_label_more_in_a_selector(self):
        narrowed = WANTED["spec"]["selector"] | {"app": "theirs"}

        assert self.found(self.edited("selector", narrowed)) == {"spec.selector": {"kubectl"}}

    def test_are_what_stands_beside_ours_and_may_not(self):
        assert self.found(self.edited("externalIPs", ["192.0.2.1"])) == {
            "spec.externalIPs": {"kubectl"}
        }

    def test_are_a_field_that_nobody_has_any_more(self):
        gone = changed(LIVE, ("spec", "selector"), None)
        del gone["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:selector"]

        assert self.found(gone) == {"spec.selector": set()}

    def test_are_not_what_we_want_otherwise_than_before(self):
        wanted = changed(WANTED, ("spec", "ports", 0, "targetPort"), "metrics")

        assert self.found(LIVE, wanted) == {}

    def test_are_not_what_others_wrote_as_we_want_it(self):
        assert self.found(self.edited("type", "ClusterIP")) == {}

    def test_are_told_by_label(self):
        live = changed(LIVE, ("metadata", "labels", "tonnage.dev/managed"), "false")
        fields = {"f:metadata": {"f:labels": {"f:tonnage.dev/managed": {}}}}
        live["metadata"]["managedFields"].append({"manager": "kubectl", "fieldsV1": fields})
        ours = live["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:labels"]
        del ours["f:tonnage.dev/managed"]

        assert self.found(live) == {"metadata.labels.tonnage.dev/managed": {"kubectl"}}
