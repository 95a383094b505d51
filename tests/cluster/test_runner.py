"""The pod runner on the real control plane: what a kubelet does, seen through the API."""

import base64
import json
import os
import signal
import sys
import urllib.request
import uuid
from pathlib import Path

import pytest

from pod_lab import (
    OPERATOR,
    SHELL,
    Lab,
    a_deployment,
    a_lab,
    a_service,
    eventually,
    ready_addresses,
)
from tonnage_lab.processes import is_alive, run
from tonnage_lab.runner.__main__ import main, obstacle
from tonnage_lab.runner.network import NAMESPACE_FOLDER

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(obstacle() is not None, reason=str(obstacle())),
]


@pytest.fixture
def lab(kubectl, administrator, namespace, tmp_path):
    with a_lab(kubectl, administrator, namespace, tmp_path) as made:
        yield made


def test_a_deployment_gets_ready_pods_with_addresses_that_answer(lab):
    lab.apply(a_deployment(lab, 2), a_service())
    lab.kubectl(
        "wait", "--for=condition=Available", "--timeout=60s", "-n", lab.namespace, "deployment/m"
    )
    eventually(lambda: len(ready_addresses(lab)) == 2, "two endpoints")

    for address in ready_addresses(lab):
        with urllib.request.urlopen(f"http://{address}:8000/version", timeout=5) as answer:
            assert json.load(answer) == {"version": "0.33.0"}


def test_gpus_limit_how_many_pods_a_node_takes(lab):
    lab.apply(a_deployment(lab, 3))
    eventually(
        lambda: (
            sorted(pod["status"]["phase"] for pod in lab.pods())
            == ["Pending", "Running", "Running"]
        ),
        "two of three pods run on four GPUs",
    )


def test_scaling_down_drains_a_pod_and_frees_its_address(lab):
    lab.apply(a_deployment(lab, 2), a_service())
    eventually(lambda: len(ready_addresses(lab)) == 2, "two endpoints", timeout_s=60)
    lab.kubectl("scale", "deployment/m", "--replicas=1", "-n", lab.namespace)
    eventually(lambda: len(lab.pods()) == 1, "one pod is left")

    assert len(ready_addresses(lab)) == 1


def test_environment_command_and_volumes_are_as_the_pod_says(lab):
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "conf"},
            "data": {"a": "1", "file.txt": "from the config map"},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "token"},
            "data": {"key": base64.b64encode(b"s3cret").decode()},
        },
    )
    lab.shell(
        "env",
        'echo "$POD $CONF $KEY $NVIDIA_VISIBLE_DEVICES $POD_IP"; cat /made/here/file.txt; '
        "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; "
        "test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo has-token; "
        "echo x > /made/here/y || echo read-only; pwd; echo data > /cache/z; cat /cache/z; "
        "touch /left-behind",
        container={
            "workingDir": "/tmp",  # noqa: S108
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
            "env": [
                {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "CONF", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "a"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "token", "key": "key"}}},
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
            "volumeMounts": [
                {"name": "conf", "mountPath": "/made/here", "readOnly": True},
                {"name": "cache", "mountPath": "/cache"},
            ],
        },
        restartPolicy="Never",
        volumes=[
            {"name": "conf", "configMap": {"name": "conf"}},
            {"name": "cache", "emptyDir": {}},
        ],
    )
    lab.wait("env", "jsonpath={.status.phase}=Succeeded")
    address = lab.pod("env")["status"]["podIP"]
    first, *rest = lab.log("env").splitlines()

    assert first == f"env 1 s3cret 0 {address}"
    assert rest[0] == f"from the config map{lab.namespace}"
    assert "has-token" in rest
    assert "read-only" in rest
    assert rest[-2:] == ["/tmp", "data"]  # noqa: S108
    assert not any(Path(path).exists() for path in ("/made", "/cache/z", "/left-behind"))


def test_a_pod_finds_another_that_is_not_ready_by_its_name_in_a_headless_service(lab):
    server = "import socket; s = socket.create_server(('', 9000)); s.accept()[0].send(b'hi')"
    client = (
        "import socket, time\n"
        "while True:\n"
        "    try:\n"
        f"        print(socket.create_connection(('first.peers.{lab.namespace}', 9000)).recv(2))\n"
        "        break\n"
        "    except OSError:\n"
        "        time.sleep(0.1)\n"
    )
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "peers"},
            "spec": {
                "clusterIP": "None",
                "selector": {"app": "first"},
                "publishNotReadyAddresses": True,
            },
        }
    )
    never = {"tcpSocket": {"port": 1}}
    for name, script, place in (
        ("first", server, {"hostname": "first", "subdomain": "peers"}),
        ("second", client, {}),
    ):
        made = {"name": "main", "image": SHELL, "command": ["py", "-c", script]}
        probe = {"readinessProbe": never} if place else {}
        lab.run(name, restartPolicy="Never", containers=[made | probe], **place)
    lab.wait("second", "jsonpath={.status.phase}=Succeeded")

    assert lab.log("second") == "b'hi'\n"


def test_a_host_network_pod_reaches_the_api_with_its_own_rights_only(lab):
    script = (
        "import urllib.request, ssl, os\n"
        "base = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "host, port = (os.environ['KUBERNETES_SERVICE_' + e] for e in ('HOST', 'PORT'))\n"
        "url = f'https://{host}:{port}/api/v1/namespaces'\n"
        "token = {'Authorization': 'Bearer ' + open(base + 'token').read()}\n"
        "tls = ssl.create_default_context(cafile=base + 'ca.crt')\n"
        "try:\n"
        "    urllib.request.urlopen(urllib.request.Request(url, headers=token), context=tls)\n"
        "except urllib.error.HTTPError as error:\n"
        "    print(error.code, error.read().decode())\n"
    )
    lab.run(
        "caller",
        hostNetwork=True,
        restartPolicy="Never",
        containers=[{"name": "main", "image": SHELL, "command": ["py", "-c", script]}],
    )
    lab.wait("caller", "jsonpath={.status.phase}=Succeeded")

    assert lab.log("caller").startswith("403 ")
    assert f"system:serviceaccount:{lab.namespace}:default" in lab.log("caller")


def test_a_token_is_not_mounted_where_the_pod_does_not_want_it(lab):
    lab.shell(
        "bare",
        "cat /var/run/secrets/kubernetes.io/serviceaccount/token || echo none",
        restartPolicy="Never",
        automountServiceAccountToken=False,
    )
    lab.wait("bare", "jsonpath={.status.phase}=Succeeded")

    assert lab.log("bare").endswith("none\n")


def test_an_unknown_image_waits_as_a_failed_pull_does(lab):
    lab.run("unknown", containers=[{"name": "main", "image": "nobody/nothing:1"}])
    seen = set()

    def pulled_twice():
        state = lab.state("unknown")
        if state:
            seen.add(state["state"]["waiting"]["reason"])
        return "ImagePullBackOff" in seen

    eventually(pulled_twice, "the pull is backed off")

    assert seen <= {"ErrImagePull", "ImagePullBackOff"}
    assert "nobody/nothing:1" in lab.state("unknown")["state"]["waiting"]["message"]
    assert lab.pod("unknown")["status"]["phase"] == "Pending"


def test_a_missing_config_map_is_named_and_the_pod_starts_when_it_comes(lab):
    env = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}}
    lab.shell("late", "echo got $A", container={"env": [env]}, restartPolicy="Never")
    lab.wait(
        "late",
        "jsonpath={.status.containerStatuses[0].state.waiting.reason}=CreateContainerConfigError",
    )
    message = lab.state("late")["state"]["waiting"]["message"]
    conf = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}}
    lab.apply(conf | {"data": {"a": "it"}})
    lab.wait("late", "jsonpath={.status.phase}=Succeeded")

    assert message == 'configmap "late" not found'
    assert lab.log("late") == "got it\n"


def test_a_crashing_container_is_restarted_ever_later(lab):
    reads_log = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    lab.shell("crash", "echo start; exit 3", container=reads_log)
    eventually(
        lambda: (
            (state := lab.state("crash")) is not None
            and state["restartCount"] >= 2
            and state["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
        ),
        "two restarts and a back-off",
    )
    state = lab.state("crash")

    assert state["lastState"]["terminated"]["exitCode"] == 3
    assert state["lastState"]["terminated"]["message"].endswith("start\n")
    assert not state["ready"]
    assert lab.pod("crash")["status"]["phase"] == "Running"


def test_a_failed_liveness_probe_restarts_the_container_and_a_failed_readiness_does_not(lab):
    switch = {"exec": {"command": ["test", "-e", "/alive"]}, "periodSeconds": 2}
    script = "touch /alive; (sleep 1; rm /alive) & trap 'exit 0' TERM; while :; do sleep 0.1; done"
    lab.shell("live", script, container={"livenessProbe": switch | {"failureThreshold": 2}})
    lab.shell("ready", script, container={"readinessProbe": switch | {"failureThreshold": 1}})
    lab.wait("ready", "condition=Ready")
    lab.wait("ready", "condition=Ready=False")
    eventually(lambda: lab.state("live")["restartCount"] >= 1, "the live pod is restarted")

    assert lab.state("ready")["restartCount"] == 0
    assert "running" in lab.state("ready")["state"]


def test_a_deleted_pod_gets_its_hook_then_sigterm_and_then_goes(lab):
    lab.shell(
        "polite",
        "trap 'echo term; exit 0' TERM; echo up; while :; do sleep 0.1; done",
        container={
            "lifecycle": {
                "preStop": {"exec": {"command": ["sh", "-c", "echo bye >> /proc/1/fd/1"]}}
            }
        },
        terminationGracePeriodSeconds=20,
    )
    eventually(lambda: "up" in lab.log("polite"), "the container is up")
    lab.kubectl("delete", "pod", "polite", "-n", lab.namespace, "--timeout=15s")

    assert lab.log("polite").splitlines() == ["up", "bye", "term"]


def test_a_container_that_ignores_sigterm_is_killed_after_its_grace_with_all_its_children(lab):
    tag = f"deaf-{uuid.uuid4().hex}"
    lab.shell(
        "deaf",
        f"sh -c 'while :; do sleep 0.2; done' {tag} & "
        "trap '' TERM; echo up; while :; do sleep 0.1; done",
        terminationGracePeriodSeconds=1,
    )
    eventually(lambda: "up" in lab.log("deaf"), "the container is up")
    lab.kubectl("delete", "pod", "deaf", "-n", lab.namespace, "--timeout=15s")

    assert tag not in all_command_lines()


def test_a_job_completes_and_its_pod_stays_to_be_read(lab):
    lab.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "once"},
            "spec": {
                "template": {
                    "spec": {
                        "nodeSelector": {"pool": lab.node},
                        "restartPolicy": "Never",
                        "containers": [{"name": "main", "image": SHELL, "args": ["true"]}],
                    }
                }
            },
        }
    )
    lab.kubectl(
        "wait", "--for=condition=Complete", "--timeout=30s", "-n", lab.namespace, "job/once"
    )


def all_command_lines():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def namespaces():
    return {path.name for path in NAMESPACE_FOLDER.glob("tonnage-*")}


def test_sigterm_leaves_nothing_behind(kubectl, administrator, namespace, tmp_path):
    before = namespaces()
    lab = Lab(kubectl, administrator, namespace, tmp_path)
    lab.start()
    tag = f"left-{uuid.uuid4().hex}"
    lab.shell("left", f"echo {tag}; while :; do sleep 0.1; done")
    eventually(lambda: tag in lab.log("left"), "the container is up")
    lab.group.stop_all()

    assert tag not in all_command_lines()
    assert namespaces() == before
    assert not kubectl("get", "node", lab.node, "--ignore-not-found").strip()
    assert not any((tmp_path / "state" / "pods").iterdir())


def test_containers_die_with_a_killed_runner_and_the_next_one_takes_the_pods_up_again(lab):
    lab.apply(a_deployment(lab, 1), a_service())
    eventually(lambda: len(ready_addresses(lab)) == 1, "an endpoint", timeout_s=60)
    record = lab.group.records["runner"]
    os.kill(record.pid, signal.SIGKILL)
    state = str(lab.folder / "state" / "pods")
    eventually(lambda: not is_alive(record) and state not in all_command_lines(), "all are dead")
    lab.start()

    def restarted():
        (pod,) = lab.pods()
        (container,) = pod["status"]["containerStatuses"]
        return container["restartCount"] == 1 and container["ready"]

    eventually(restarted, "the pod is ready again, restarted once")


def test_without_root_the_runner_says_why_it_cannot_run():
    program = (
        "import os\n"
        "from tonnage_lab.runner.__main__ import obstacle\n"
        "os.setuid(65534)\n"
        "print(obstacle())"
    )
    said = run([sys.executable, "-c", program], environment={"PYTHONPATH": str(OPERATOR)})

    assert "has to be started as root" in said


def test_a_wrong_configuration_is_refused_with_its_field(tmp_path, kubectl, caplog):
    path = tmp_path / "runner.yaml"
    path.write_text("state_directory: /x\nnodes: []\nspeed: 3\n")
    code = main(["--kubeconfig", str(kubectl.kubeconfig), "--config", str(path)])

    assert code == 1
    assert "speed" in caplog.text
