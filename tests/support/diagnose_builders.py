"""A cluster that answers ``tonnage diagnose`` by path, and the files that come of it."""

import io
import tarfile

from cli_builders import run
from http_double import Reply, a_kubeconfig, json_reply, serving

HIDDEN = "s3cr3t-value-17"
OWN = "/api/v1/namespaces/tonnage-system"
SERVING = "namespaces/serving"
POD = "tonnage-abc"


def items(*found):
    return {"metadata": {}, "items": list(found)}


def named(name, **fields):
    return {"metadata": {"name": name}, **fields}


OPERATOR = named(
    "tonnage",
    spec={
        "template": {
            "spec": {
                "volumes": [
                    {"name": "settings", "configMap": {"name": "tonnage"}},
                    {"name": "ca", "configMap": {"name": "of-somebody-else"}},
                ]
            }
        }
    },
)
OPERATORS_POD = named(
    POD,
    spec={"containers": [{"image": "o:1", "ports": [{"name": "http", "containerPort": 8081}]}]},
    status={"containerStatuses": [{"restartCount": 1}]},
)
ENGINE = named("llama", spec={"env": [{"name": "HF_TOKEN", "value": HIDDEN}]})
ANSWERS = {
    "/apis/coordination.k8s.io/v1/leases": items(),
    "/version": {"gitVersion": "v1.36.4"},
    f"/apis/tonnage.dev/v1alpha1/{SERVING}/modeldeployments": items(
        named("llama", status={"conditions": [{"type": "SLOMet", "status": "False"}]})
    ),
    f"/apis/apps/v1/{SERVING}/deployments": items(ENGINE),
    f"/apis/apps/v1/{SERVING}/replicasets": items(named("llama-1")),
    f"/api/v1/{SERVING}/pods": items(named("llama-1-x")),
    f"/apis/events.k8s.io/v1/{SERVING}/events": items(
        {"regarding": {"name": "llama-1-x"}, "note": "ours"},
        {"regarding": {"name": "another"}, "note": "of somebody else"},
    ),
    "/apis/apps/v1/namespaces/tonnage-system/deployments": items(OPERATOR),
    f"{OWN}/pods": items(OPERATORS_POD),
    f"{OWN}/configmaps/tonnage": named("tonnage", data={"settings.yaml": "tickS: 15\n"}),
    f"{OWN}/configmaps/of-somebody-else": named("of-somebody-else", data={"a": HIDDEN}),
    f"{OWN}/configmaps/tonnage-calibration": named("tonnage-calibration", data={"a": "learned"}),
    "/apis/coordination.k8s.io/v1/namespaces/tonnage-system/leases/tonnage-operator": named("x"),
    f"{OWN}/pods/{POD}/log": f"event=decision\ntoken={HIDDEN}\n",
    f"{OWN}/pods/{POD}%3A8081/proxy/metrics": "tonnage_leader 1.0\n",
}


class Cluster:
    """Answers by path; a path that is forbidden is refused."""

    def __init__(self, answers=ANSWERS, forbidden=()):
        self.answers, self.forbidden, self.asked = answers, forbidden, []

    def __call__(self, asked):
        self.asked.append(asked)
        if any(part in asked.path for part in self.forbidden):
            return json_reply({"message": "forbidden for you"}, status=403)
        found = self.answers.get(asked.path)
        if found is None:
            return json_reply({"message": "not found"}, status=404)
        return Reply(body=found.encode()) if isinstance(found, str) else json_reply(found)


def files_of(cluster, folder, *options):
    """Run the command on a cluster; return its result and {file: text} of what it wrote."""
    kubeconfig, target = folder / "kubeconfig", folder / "report.tar.gz"
    with serving(cluster) as server:
        kubeconfig.write_text(a_kubeconfig(server.url))
        given = ["-n", "serving", "--save", target, *options]
        result = run("diagnose", "--kubeconfig", kubeconfig, *given)
    return result, unpacked(target) if target.exists() else {}


def unpacked(path):
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
        return {
            member.name.partition("/")[2]: tar.extractfile(member).read().decode()
            for member in tar.getmembers()
        }
