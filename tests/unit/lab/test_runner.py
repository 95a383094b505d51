"""The pod runner's pure parts: environment, mounts, probes, status, volumes, addresses."""

import asyncio
import base64
import itertools
import json

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tonnage_lab.runner import names, network, node, volumes
from tonnage_lab.runner.config import NodeConfig, RunnerConfig
from tonnage_lab.runner.environment import (
    NotStartableError,
    PodFacts,
    command_line,
    environment,
    expand,
    references,
)
from tonnage_lab.runner.mounts import Bind, script, submounts
from tonnage_lab.runner.probes import Exec, HttpGet, ProbeTally, TcpSocket, parse
from tonnage_lab.runner.sandbox import Devices, num_gpus
from tonnage_lab.runner.status import (
    ContainerStatus,
    PodSituation,
    Running,
    Terminated,
    Waiting,
    pod_phase,
    pod_status,
)

POD = {
    "metadata": {
        "name": "m-0",
        "namespace": "llm",
        "uid": "1234",
        "generation": 3,
        "labels": {"app": "m", "b": "c"},
        "annotations": {"note": "hi"},
    },
    "spec": {"nodeName": "gpu-0", "serviceAccountName": "runner", "containers": []},
}
FACTS = PodFacts(pod=POD, pod_ip="10.244.0.2", host_ip="10.244.3.253")
OBJECTS = {
    ("configmaps", "conf"): {"a": b"1", "b": b"2"},
    ("secrets", "token"): {"key": b"s3cret"},
    ("configmaps", "gone"): None,
}


def variables(*env, env_from=(), base=None):
    container = {"name": "c", "env": list(env), "envFrom": list(env_from)}
    return environment(container, FACTS, OBJECTS, base or {})


def env_from_key(kind, name, key, **more):
    return {"name": "X", "valueFrom": {kind: {"name": name, "key": key, **more}}}


# Environment


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("a$(A)b$(B)", "a1b$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $", "$A $"),
        ("$()", "$()"),
    ],
)
def test_references_expand_as_kubernetes_says(text, result):
    assert expand(text, {"A": "1"}) == result


def test_env_may_refer_to_what_stands_before_it_and_goes_over_envfrom_and_the_image():
    result = variables(
        {"name": "HOST", "value": "h"},
        {"name": "URL", "value": "http://$(HOST):$(a)/$(LATER)"},
        {"name": "LATER", "value": "x"},
        {"name": "b"},
        env_from=[
            {"configMapRef": {"name": "conf"}},
            {"prefix": "S_", "secretRef": {"name": "token"}},
        ],
        base={"HOST": "image", "HOME": "/root"},
    )

    assert result == {
        "HOST": "h",
        "HOME": "/root",
        "a": "1",
        "b": "",
        "S_key": "s3cret",
        "URL": "http://h:1/$(LATER)",
        "LATER": "x",
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "m-0"),
        ("metadata.namespace", "llm"),
        ("metadata.uid", "1234"),
        ("metadata.labels['app']", "m"),
        ("metadata.annotations['note']", "hi"),
        ("metadata.labels", 'app="m"\nb="c"'),
        ("spec.nodeName", "gpu-0"),
        ("spec.serviceAccountName", "runner"),
        ("status.podIP", "10.244.0.2"),
        ("status.hostIP", "10.244.3.253"),
    ],
)
def test_fields_of_the_pod_reach_its_environment(path, value):
    assert variables({"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}})["X"] == value


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (env_from_key("configMapKeyRef", "gone", "a"), 'configmap "gone" not found'),
        (env_from_key("secretKeyRef", "none", "a"), 'secret "none" not found'),
        (env_from_key("configMapKeyRef", "conf", "z"), "couldn't find key z in configmap conf"),
        ({"name": "X", "valueFrom": {"resourceFieldRef": {}}}, "resourceFieldRef"),
        ({"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}, "field spec.x"),
    ],
)
def test_what_a_container_lacks_is_named(variable, message):
    with pytest.raises(NotStartableError, match=message) as error:
        variables(variable)

    assert error.value.reason == "CreateContainerConfigError"


def test_optional_keys_and_objects_may_be_missing():
    assert variables(env_from_key("configMapKeyRef", "conf", "z", optional=True)) == {}
    assert variables(env_from_key("secretKeyRef", "none", "a", optional=True)) == {}


def test_references_to_objects_are_found_wherever_they_stand():
    container = {
        "name": "c",
        "envFrom": [{"secretRef": {"name": "s"}}],
        "env": [env_from_key("configMapKeyRef", "c", "k"), {"name": "Y", "value": "1"}],
    }

    assert {(each.resource, each.name) for each in references(container)} == {
        ("secrets", "s"),
        ("configmaps", "c"),
    }


@pytest.mark.parametrize(
    ("container", "argv"),
    [
        ({"args": ["$(M)", "--port", "1"]}, ["python", "serve", "m", "--port", "1"]),
        ({"command": ["vllm", "serve"], "args": ["m"]}, ["python", "emulator", "serve", "m"]),
        ({"command": ["sh", "vllm", "serve"]}, ["sh", "python", "emulator", "serve"]),
        ({"command": ["sleep", "1"], "args": ["vllm"]}, ["sleep", "1", "vllm"]),
        ({}, ["python", "serve"]),
    ],
)
def test_the_command_line_is_the_images_unless_the_container_has_its_own(container, argv):
    programs = {"vllm": ["python", "emulator"]}

    assert (
        command_line(container, {"M": "m"}, entrypoint=["python", "serve"], programs=programs)
        == argv
    )


# Mounts


def a_script(*binds, lower=()):
    return script(scratch="/state/c", binds=list(binds), lower=lower, mount="mount").splitlines()


def test_the_root_is_an_overlay_whose_writes_stay_in_memory():
    lines = a_script()

    assert "mount -t tmpfs -o mode=0755 tmpfs /state/c" in lines
    assert any("lowerdir=/,upperdir=/state/c/upper0" in line for line in lines)


def test_parents_are_mounted_before_what_lies_in_them():
    lines = a_script(Bind(source="/v/b", target="/data/inner"), Bind(source="/v/a", target="/data"))
    binds = [line for line in lines if "--bind" in line]

    assert [line.split()[-1] for line in binds] == [
        "/state/c/root/data",
        "/state/c/root/data/inner",
    ]


def test_a_read_only_file_is_bound_onto_a_file():
    lines = a_script(Bind(source="/v/f", target="/etc/x/f", is_file=True, read_only=True))

    assert "mkdir -p $(dirname /state/c/root/etc/x/f) && touch /state/c/root/etc/x/f" in lines
    assert "mount -o remount,bind,ro /state/c/root/etc/x/f" in lines


def test_paths_from_a_pod_are_quoted():
    lines = a_script(Bind(source="/v/a", target="/x; rm -rf y"))

    assert "mkdir -p '/state/c/root/x; rm -rf y'" in lines


def test_other_file_systems_get_overlays_but_the_kernels_own_do_not():
    points = ["/", "/proc", "/proc/sys/x", "/dev/x", "/sys/fs/cgroup", "/run", "/home", "/a:b"]
    mountinfo = "\n".join(f"36 35 98:0 / {point} rw - ext4 /dev/x rw" for point in points)

    assert submounts(mountinfo) == ["/home"]


# Probes


def a_probe(**changes):
    container = {"name": "c", "ports": [{"name": "http", "containerPort": 8000}]}
    probe = {"httpGet": {"path": "/health", "port": "http"}} | changes
    return parse(probe, container, host="10.244.0.2", period_scale=0.5)


def test_a_probe_has_kubernetes_defaults_and_scaled_periods():
    probe = a_probe(initialDelaySeconds=4)

    assert probe.target == HttpGet(url="http://10.244.0.2:8000/health")
    assert (probe.initial_delay_s, probe.period_s, probe.timeout_s) == (2, 5, 1)
    assert (probe.success_threshold, probe.failure_threshold) == (1, 3)


@pytest.mark.parametrize(
    ("handler", "target"),
    [
        ({"tcpSocket": {"port": 1}}, TcpSocket(host="10.244.0.2", port=1)),
        ({"exec": {"command": ["true"]}}, Exec(command=("true",))),
        (
            {"httpGet": {"port": 1, "host": "x", "scheme": "HTTPS",
                         "httpHeaders": [{"name": "A", "value": "b"}]}},
            HttpGet(url="https://x:1/", headers={"A": "b"}),
        ),
    ],
)  # fmt: skip
def test_a_probe_asks_in_one_of_three_ways(handler, target):
    assert parse(handler, {"name": "c"}, host="10.244.0.2", period_scale=1).target == target


@pytest.mark.parametrize(
    ("handler", "message"),
    [({"grpc": {"port": 1}}, "grpc"), ({"tcpSocket": {"port": "http"}}, "no port named http")],
)
def test_a_probe_that_cannot_be_asked_is_refused(handler, message):
    with pytest.raises(NotStartableError, match=message):
        parse(handler, {"name": "c"}, host="h", period_scale=1)


@pytest.mark.parametrize(
    ("answers", "verdicts"),
    [
        ("+", [True]),
        ("--+", [None, None, True]),
        ("+--+", [True, True, True, True]),
        ("+---", [True, True, True, False]),
        ("---+-", [None, None, False, True, True]),
    ],
)
def test_a_verdict_needs_its_threshold_of_answers_in_a_row(answers, verdicts):
    tally = ProbeTally(probe=a_probe())

    assert [tally.note(answer == "+") for answer in answers] == verdicts


@given(st.lists(st.booleans()), st.integers(1, 4), st.integers(1, 4))
def test_a_verdict_changes_only_after_that_many_equal_answers(answers, successes, failures):
    tally = ProbeTally(probe=a_probe(successThreshold=successes, failureThreshold=failures))
    verdict = None
    for index, answer in enumerate(answers):
        before, verdict = verdict, tally.note(answer)

        if verdict != before:
            last = answers[: index + 1][-(successes if answer else failures) :]
            assert last == [answer] * (successes if answer else failures)


# Status

RUNNING = Running(started_at="t1")
ENDED = Terminated(exit_code=0, started_at="t1", finished_at="t2", container_id="process://1")
FAILED = Terminated(exit_code=3, started_at="t1", finished_at="t2", container_id="process://1")
NEW = Waiting(reason="ContainerCreating")
CRASHED = (Waiting(reason="CrashLoopBackOff"), FAILED)


def containers(*states):
    found = []
    for number, state in enumerate(states):
        now, last = state if isinstance(state, tuple) else (state, None)
        found.append(ContainerStatus(name=f"c{number}", image="i", state=now, last=last))
    return found


@pytest.mark.parametrize(
    ("states", "policy", "phase"),
    [
        ([NEW], "Always", "Pending"),
        ([RUNNING, NEW], "Always", "Pending"),
        ([RUNNING], "Always", "Running"),
        ([CRASHED], "Always", "Running"),
        ([ENDED], "Always", "Running"),
        ([ENDED, ENDED], "Never", "Succeeded"),
        ([ENDED, FAILED], "Never", "Failed"),
        ([ENDED, RUNNING], "Never", "Running"),
        ([CRASHED], "OnFailure", "Running"),
        ([ENDED], "OnFailure", "Succeeded"),
    ],
)
def test_the_phase_is_a_kubelets(states, policy, phase):
    assert pod_phase(containers(*states), policy) == phase


def a_status(*found, pod=POD, now="t9"):
    return pod_status(
        PodSituation(
            pod=pod,
            containers=found,
            pod_ip="10.244.0.2",
            host_ip="10.244.3.253",
            start_time="t0",
            now=now,
        )
    )


def conditions(status):
    return {each["type"]: each for each in status["conditions"]}


def test_a_pod_is_ready_when_all_its_containers_are():
    ready = ContainerStatus(name="a", image="i", state=RUNNING, ready=True, started=True)
    not_yet = ContainerStatus(name="b", image="i", state=RUNNING)
    part, whole = conditions(a_status(ready, not_yet)), conditions(a_status(ready))

    assert part["Ready"]["status"] == "False"
    assert part["Ready"]["reason"] == "ContainersNotReady"
    assert part["ContainersReady"]["message"] == "containers with unready status: [b]"
    assert part["PodReadyToStartContainers"]["status"] == "True"
    assert {each["status"] for each in whole.values()} == {"True"}


def test_a_condition_keeps_its_time_until_it_changes():
    ready = ContainerStatus(name="a", image="i", state=RUNNING, ready=True)
    first = a_status(ready, now="t1")
    later = a_status(ready, pod={**POD, "status": first}, now="t2")
    lost = a_status(
        ContainerStatus(name="a", image="i", state=RUNNING), pod={**POD, "status": later}, now="t3"
    )

    assert conditions(later)["Ready"]["lastTransitionTime"] == "t1"
    assert conditions(lost)["Ready"]["lastTransitionTime"] == "t3"
    assert conditions(lost)["Initialized"]["lastTransitionTime"] == "t1"


def test_a_crash_shows_in_state_last_state_and_count():
    crashed = ContainerStatus(
        name="a", image="i", state=CRASHED[0], last=FAILED, restart_count=2, container_id="x"
    )
    (shown,) = a_status(crashed)["containerStatuses"]

    assert shown["state"] == {"waiting": {"reason": "CrashLoopBackOff"}}
    assert shown["lastState"]["terminated"]["exitCode"] == 3
    assert shown["lastState"]["terminated"]["reason"] == "Error"
    assert shown["restartCount"] == 2


def test_a_status_is_valid_kubernetes():
    states = containers(RUNNING, NEW, CRASHED, ENDED)
    status = json.loads(json.dumps(a_status(*states, now="2026-01-02T03:04:05Z")))
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "m"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": status,
    }

    kubernetes_validate.validate(pod, "1.34", strict=True)


def test_a_node_and_its_lease_are_valid_kubernetes():
    config = NodeConfig(name="gpu-0", gpus=8, labels={"nvidia.com/gpu.product": "NVIDIA-H200"})
    made = node.node(config)
    made["status"] = node.status(
        config, host_ip="10.1.1.1", version="v1", now="2026-01-02T03:04:05Z"
    )
    del made["status"]["nodeInfo"]  # the schema wants all of a real machine's fields
    lease = node.lease("gpu-0", now="2026-01-02T03:04:05.000000Z")

    kubernetes_validate.validate(made, "1.34", strict=True)
    kubernetes_validate.validate(lease, "1.34", strict=True)
    assert made["status"]["allocatable"]["nvidia.com/gpu"] == "8"


# Volumes


def test_configmaps_and_secrets_become_files():
    conf = {"kind": "ConfigMap", "data": {"a": "1"}, "binaryData": {"b": "AAE="}}
    token = {"kind": "Secret", "data": {"key": base64.b64encode(b"s").decode()}}

    assert volumes.data_of(conf) == {"a": b"1", "b": b"\0\1"}
    assert volumes.data_of(token) == {"key": b"s"}
    assert volumes.data_of(None) is None


def test_a_projected_volume_gathers_its_sources():
    volume = {
        "name": "all",
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "conf", "items": [{"key": "a", "path": "sub/a"}]}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
                {"secret": {"name": "token"}},
            ]
        },
    }  # fmt: skip

    assert volumes.files(volume, FACTS, OBJECTS) == {
        "sub/a": b"1",
        "namespace": b"llm",
        "key": b"s3cret",
    }
    (token,) = volumes.token_refs(volume)
    assert (token.path, token.lifetime_s, token.audience) == ("token", 3607, None)
    assert {each.name for each in volumes.references([volume])} == {"conf", "token"}


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"name": "v", "configMap": {"name": "gone"}}, 'configmap "gone" not found'),
        ({"name": "v", "nfs": {"server": "s"}}, "volume v: nfs is not known here"),
        (
            {"name": "v", "secret": {"secretName": "token", "items": [{"key": "z", "path": "z"}]}},
            "non-existent key: z",
        ),
    ],
)
def test_a_volume_that_cannot_be_filled_says_why(volume, message):
    with pytest.raises(NotStartableError, match=message):
        volumes.files(volume, FACTS, OBJECTS)


def test_volumes_are_mounted_where_the_container_says(tmp_path):
    folders = volumes.VolumeFolders(pod=tmp_path / "pod", claims=tmp_path / "claims")
    volumes.write(folders.pod / "conf", {"key": b"value"})
    specs = [
        {"name": "conf", "configMap": {"name": "conf"}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "models"}},
    ]
    container = {
        "volumeMounts": [
            {"name": "conf", "mountPath": "/etc/key", "subPath": "key", "readOnly": True},
            {"name": "cache", "mountPath": "/cache"},
        ]
    }
    key, cache = volumes.binds(container, specs, folders)

    assert key == Bind(
        source=f"{folders.pod}/conf/key", target="/etc/key", is_file=True, read_only=True
    )
    assert cache == Bind(source=f"{folders.claims}/models", target="/cache")


def test_a_mount_of_a_volume_that_the_pod_lacks_is_refused(tmp_path):
    folders = volumes.VolumeFolders(pod=tmp_path, claims=tmp_path)
    container = {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}

    with pytest.raises(NotStartableError, match="no volume x"):
        volumes.binds(container, [], folders)


# Addresses, devices, configuration


def test_pods_of_different_runners_never_share_an_address_or_a_name():
    blocks = [network.AddressBlock(index=index, lock=None) for index in range(64)]
    pods = [block.pod_network(number) for block in blocks for number in range(block.num_links)]
    addresses = [pod.pod_ip for pod in pods] + [pod.gateway_ip for pod in pods]
    addresses += [block.host_ip for block in blocks]

    assert len(set(addresses)) == len(addresses)
    assert len({pod.namespace for pod in pods}) == len({pod.link for pod in pods}) == len(pods)
    assert max(len(pod.link) for pod in pods) < 15  # with one more letter for the other end


def test_the_first_pod_of_a_block_has_these_addresses():
    pod = network.AddressBlock(index=1, lock=None).pod_network(1)

    assert (pod.gateway_ip, pod.pod_ip) == ("10.244.4.5", "10.244.4.6")


def test_an_address_rests_after_use_until_the_others_have_had_their_turn():
    block = network.AddressBlock(index=0, lock=None)
    first = block.reserve()
    block._used.discard(first)

    assert block.reserve() == first + 1


def test_a_full_block_says_so():
    block = network.AddressBlock(index=0, lock=None)
    for _ in range(block.num_links):
        block.reserve()

    with pytest.raises(network.NetworkError, match="all 255 pod addresses"):
        block.reserve()


def test_gpus_are_given_out_once():
    devices = Devices(free=[3, 1, 2, 0])
    first, second = devices.take(2), devices.take(1)
    devices.give_back(first)

    assert (first, second, devices.take(3)) == ([0, 1], [2], [0, 1, 3])
    assert num_gpus({"resources": {"limits": {"nvidia.com/gpu": "2"}}}) == 2
    assert num_gpus({}) == 0


def test_an_image_is_matched_as_a_whole_and_the_first_match_counts():
    config = RunnerConfig.model_validate(
        {
            "state_directory": "/state",
            "nodes": [{"name": "a"}],
            "images": [
                {"image": "vllm/vllm-openai:v0\\..*", "command": ["first"]},
                {"image": "vllm/.*", "command": ["second"]},
            ],
        }
    )
    names = ["vllm/vllm-openai:v0.33.0", "vllm/other", "docker.io/vllm/other"]
    found = [config.image_for(name) for name in names]

    assert [each and each.command for each in found] == [["first"], ["second"], None]


@pytest.mark.parametrize("path", ["state", "/a:b", "/a,b", "/a b"])
def test_a_state_directory_must_fit_into_mount_options(path):
    with pytest.raises(ValidationError, match="must be absolute, without colon"):
        RunnerConfig.model_validate({"state_directory": path, "nodes": [{"name": "a"}]})


def test_restarts_of_a_block_index_come_in_order():
    numbers = itertools.islice(iter(network.AddressBlock(index=0, lock=None).reserve, None), 4)

    assert list(numbers) == [0, 1, 2, 3]


ENDPOINT_SLICE = {
    "metadata": {
        "uid": "1",
        "namespace": "llm",
        "labels": {"kubernetes.io/service-name": "m-0"},
    },
    "endpoints": [
        {"hostname": "m-0", "addresses": ["10.244.0.2"]},
        {"addresses": ["10.0.0.9"]},
    ],
}


class TestNames:
    NAME = b"\x03m-0\x03M-0\x03llm\x03svc\x07cluster\x05local\x00"

    @staticmethod
    def asked(name, kind=1):
        return b"\x12\x34\x01\x00\x00\x01" + bytes(6) + name + bytes([0, kind, 0, 1])

    @pytest.fixture
    def known(self):
        made = names.Names()
        made.follower().on_list([ENDPOINT_SLICE])
        return made

    def test_a_pod_has_that_of_its_host_in_its_service(self, known):
        told = names.answer(self.asked(self.NAME), known)

        assert told[:12] == b"\x12\x34\x85\x80\x00\x01\x00\x01" + bytes(4)
        assert told.endswith(b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x01\x00\x04\x0a\xf4\x00\x02")

    def test_it_has_no_address_of_another_kind(self, known):
        told = names.answer(self.asked(self.NAME, kind=28), known)

        assert told[2:8] == b"\x85\x80\x00\x01\x00\x00"

    def test_where_the_port_cannot_be_had_the_runner_goes_on_without(self, caplog):
        class FollowedError(Exception):
            """The names are asked for in spite of it."""

        class Slices:
            async def list(self, path):
                raise FollowedError(path)

        with pytest.raises(FollowedError):
            asyncio.run(names.serve(Slices(), "192.0.2.1"))  # an address that no machine has

        assert "pods have no names: UDP port 53 of 192.0.2.1" in caplog.text

    def test_what_is_gone_or_was_never_there_is_no_name(self, known):
        unknown = names.answer(self.asked(b"\x07example\x04test\x00"), known)
        known.follower().on_event("DELETED", ENDPOINT_SLICE)
        gone = names.answer(self.asked(self.NAME), known)

        assert unknown[2:8] == gone[2:8] == b"\x85\x83\x00\x01\x00\x00"
