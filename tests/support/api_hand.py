"""What kubectl does for tests, without a process for each: namespaces, rights, manifests.

A call of kubectl takes a tenth of a second of CPU, most of it to learn what the server serves.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from tonnage.cluster.kube import KubeApi, Resource, load_client
from tonnage_lab.processes import wait_until

NAMESPACES = Resource("api/v1", "namespaces")
ACCOUNTS = Resource("api/v1", "serviceaccounts")
RBAC = "rbac.authorization.k8s.io"
BINDINGS = Resource(f"apis/{RBAC}/v1", "clusterrolebindings")
MANAGER = "kubectl"
PATIENCE_S = (30, 60)
"""To connect, to read: a machine may be busy."""

Object = dict[str, Any]


@contextmanager
def administering(kubeconfig: Any) -> Iterator[KubeApi]:
    """Open a connection to the API server of a kubeconfig, and close it in the end."""
    client = load_client(str(kubeconfig))
    try:
        yield KubeApi(client, timeout_s=PATIENCE_S)
    finally:
        client.close()


@contextmanager
def a_namespace(api: KubeApi, name: str) -> Iterator[str]:
    """Make a namespace in which pods can be created at once, and delete it in the end."""
    add_namespace(api, name)
    account = ACCOUNTS.path(name, "default")
    wait_until(lambda: api.get(account) is not None, what=account, timeout_s=60, needs={})
    yield name
    delete(api, NAMESPACES.path(None, name))


def add_namespace(api: KubeApi, name: str) -> None:
    metadata = {"name": name}
    api.create(
        NAMESPACES.path(None), {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    )


def delete(api: KubeApi, path: str) -> None:
    """Delete an object, if it is there, and do not wait until it is gone."""
    if found := api.get(path):
        api.delete(path, uid=found["metadata"]["uid"])


def bind_administrator(api: KubeApi, user: str) -> None:
    """Give a user every right; the binding has its name."""
    body = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user}],
    }
    api.create(BINDINGS.path(None), body)


def unbind(api: KubeApi, user: str) -> None:
    delete(api, BINDINGS.path(None, user))


def apply(api: KubeApi, manifests: Iterable[Mapping[str, Any]], *, namespace: str) -> None:
    """Apply objects of one namespace server-side; a field that the server lacks is refused."""
    for each in manifests:
        body: Object = {**each, "metadata": {"namespace": namespace, **each["metadata"]}}
        where = resource_of(api, body).path(body["metadata"]["namespace"], body["metadata"]["name"])
        api.apply(where, body, manager=MANAGER, force=False)


def dry_run(
    api: KubeApi, resource: Resource, namespace: str, body: Object, *, validation: str = "Strict"
) -> Object:
    """Return what the server would store of a new object, as ``kubectl create`` asks for it."""
    query = urlencode({"dryRun": "All", "fieldValidation": validation})
    return api.create(f"{resource.path(namespace)}?{query}", body)


def resource_of(api: KubeApi, body: Mapping[str, Any]) -> Resource:
    """Return where the server serves the kind of an object, once it does: a CRD may be new."""
    version = body["apiVersion"]
    prefix = f"apis/{version}" if "/" in version else f"api/{version}"

    plurals: list[str] = []

    def is_served() -> bool:
        served = (api.document(f"/{prefix}") or {}).get("resources", ())
        names = (each["name"] for each in served if each["kind"] == body["kind"])
        plurals.extend(name for name in names if "/" not in name)
        return bool(plurals)

    wait_until(is_served, what=f"{version} {body['kind']}", timeout_s=60, needs={})
    (plural,) = plurals
    return Resource(prefix, plural)
