"""Templates of real kinds for ``spec.pods.template``, and hostile ones with the field refused."""

from dataclasses import dataclass
from typing import Any

ENGINE = "vllm"


def engine(**fields: Any) -> dict[str, Any]:
    """Return the template of one that says something of the engine's container alone."""
    return {"spec": {"containers": [{"name": ENGINE, **fields}]}}


def sidecar(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [a_container(**fields)]}}


def a_container(**fields: Any) -> dict[str, Any]:
    return {"name": "side", "image": "registry.test/side:1", **fields}


def with_volume(**source: Any) -> dict[str, Any]:
    return {"spec": {"volumes": [{"name": "more", **source}]}}


SIDECAR_IMAGES = (
    "auto", "busybox", "fluent/fluent-bit", "nvcr.io/nvidia/k8s/dcgm-exporter", "registry.test",
    "amazon/aws-cli",
)  # fmt: skip
REAL: dict[str, dict[str, Any]] = {
    "an Istio sidecar whose resources are its own": {
        "metadata": {"labels": {"sidecar.istio.io/inject": "true"}},
        "spec": {
            "initContainers": [
                {
                    "name": "istio-proxy",
                    "image": "auto",
                    "restartPolicy": "Always",
                    "resources": {"requests": {"cpu": 0.5, "memory": "256Mi"}},
                }
            ]
        },
    },
    "a cache volume that an init container fills": {
        "spec": {
            "initContainers": [
                {
                    "name": "fill",
                    "image": "registry.test/fill:1",
                    "command": ["sh", "-c", "test -d /cache/huggingface || cp -r /models /cache"],
                    "env": [{"name": "EMPTY", "value": ""}],
                    "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                }
            ]
        }
    },
    "nodes of a zone and a board, and none beside another engine": {
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "zone", "operator": "In", "values": ["a"]}
                                ]
                            },
                            {"matchExpressions": [{"key": "board", "operator": "Exists"}]},
                        ]
                    }
                },
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 100,
                            "podAffinityTerm": {
                                "topologyKey": "kubernetes.io/hostname",
                                "labelSelector": {
                                    "matchLabels": {"app.kubernetes.io/name": "vllm"}
                                },
                            },
                        }
                    ]
                },
            }
        }
    },
    "a DCGM exporter that asks the node's own engine": sidecar(
        name="dcgm",
        image="nvcr.io/nvidia/k8s/dcgm-exporter:4.5.0",
        args=["--remote-hostengine-info", "nvidia-dcgm.gpu-operator:5555"],
        ports=[{"name": "dcgm", "containerPort": 9400}],
        readinessProbe={
            "httpGet": {"port": 9400, "httpHeaders": [{"name": "Host", "value": "dcgm.test"}]},
            "initialDelaySeconds": 0,
        },
        startupProbe={"tcpSocket": {"port": 9400}},
        livenessProbe={"grpc": {"port": 9401, "service": "health"}},
        lifecycle={
            "postStart": {"exec": {"command": ["true"]}},
            "preStop": {"sleep": {"seconds": 1}},
        },
    ),
    "a loader from S3, with keys of a Secret": {
        "spec": {
            "serviceAccountName": "default",
            "volumes": [{"name": "models", "emptyDir": {"sizeLimit": "1024Gi"}}],
            "initContainers": [
                {
                    "name": "load",
                    "image": "amazon/aws-cli:2",
                    "args": ["s3", "sync", "s3://models/llama", "/models"],
                    "envFrom": [{"configMapRef": {"name": "s3"}}],
                    "env": [
                        {
                            "name": "AWS_SECRET_ACCESS_KEY",
                            "valueFrom": {"secretKeyRef": {"name": "s3", "key": "secret"}},
                        },
                        {
                            "name": "POD_NAME",
                            "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}},
                        },
                        {
                            "name": "CPUS",
                            "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}},
                        },
                    ],
                    "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                }
            ],
            "containers": [
                {
                    "name": ENGINE,
                    "volumeMounts": [{"name": "models", "mountPath": "/models", "readOnly": True}],
                }
            ],
        }
    },
    "time slices of GPUs on tainted nodes": {
        "spec": {
            "nodeSelector": {"nvidia.com/gpu.sharing-strategy": "time-slicing", "empty": ""},
            "tolerations": [{"key": "shared", "operator": "Exists"}, {"key": "team", "value": "a"}],
        }
    },
    "a bundle of CAs": {
        "spec": {
            "volumes": [
                {
                    "name": "cas",
                    "projected": {
                        "sources": [
                            {"configMap": {"name": "cas"}},
                            {"secret": {"name": "ca", "items": [{"key": "a", "path": "a.pem"}]}},
                        ]
                    },
                }
            ],
            "containers": [
                {
                    "name": ENGINE,
                    "env": [{"name": "SSL_CERT_FILE", "value": "/etc/ssl/company/bundle.pem"}],
                    "volumeMounts": [
                        {"name": "cas", "mountPath": "/etc/ssl/company", "readOnly": False}
                    ],
                }
            ],
        }
    },
    "code in one's own engine, by variables and by mounts": {
        "spec": {
            "volumes": [
                {"name": "code", "configMap": {"name": "code"}},
                {"name": "tmp", "emptyDir": {}},
            ],
            "containers": [
                {
                    "name": ENGINE,
                    "env": [
                        {"name": "C_INCLUDE_PATH", "value": "/code"},
                        {"name": "LD_PRELOAD", "value": "/code/x.so"},
                        {"name": "TRITON_CACHE_MANAGER", "value": "code:Cache"},
                    ],
                    "volumeMounts": [
                        {"name": "code", "mountPath": "/usr/lib/python3/dist-packages/code"},
                        {"name": "cache", "mountPath": "/weights"},
                        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
                    ],
                }
            ],
        }
    },
    "logs of Fluent Bit": {
        "metadata": {"annotations": {"fluentbit.io/parser": "json"}},
        "spec": {
            "volumes": [
                {"name": "logs", "emptyDir": {}},
                {"name": "config", "configMap": {"name": "fluent-bit"}},
                {
                    "name": "about",
                    "downwardAPI": {
                        "items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
                    },
                },
            ],
            "containers": [
                {"name": ENGINE, "volumeMounts": [{"name": "logs", "mountPath": "/var/log"}]},
                {
                    "name": "fluent-bit",
                    "image": "fluent/fluent-bit:4.1",
                    "resources": {"limits": {"memory": "128Mi", "cpu": "250m"}},
                    "securityContext": {
                        "readOnlyRootFilesystem": True,
                        "runAsUser": 1000,
                        "seccompProfile": {
                            "type": "Localhost",
                            "localhostProfile": "profiles/a..b.json",
                        },
                    },
                    "lifecycle": {"preStop": {"httpGet": {"path": "/flush", "port": 2020}}},
                    "livenessProbe": {"httpGet": {"path": "/", "port": 2020}},
                    "volumeMounts": [
                        {"name": "logs", "mountPath": "/logs", "readOnly": True},
                        {"name": "config", "mountPath": "/fluent-bit/etc"},
                        {"name": "about", "mountPath": "/about"},
                    ],
                },
            ],
        },
    },
    "a priority, a runtime and a scheduler": {
        "spec": {
            "priorityClassName": "serving",
            "runtimeClassName": "nvidia",
            "schedulerName": "volcano",
            "topologySpreadConstraints": [
                {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            ],
            "securityContext": {
                "fsGroupChangePolicy": "OnRootMismatch",
                "supplementalGroups": [44],
            },
        }
    },
    "a shared claim, CPU, memory and RDMA": {
        "spec": {
            "imagePullSecrets": [{"name": "mirror"}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["models"]}],
            "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
            "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}],
            "containers": [
                {
                    "name": ENGINE,
                    "resources": {
                        "requests": {"cpu": "8000m", "memory": "65536Mi", "rdma/hca": 1},
                        "limits": {"rdma/hca": 1, "memory": "96Gi"},
                    },
                    "volumeMounts": [{"name": "shared", "mountPath": "/data"}],
                }
            ],
        }
    },
    "amounts, nothing and zeros in other forms than are stored": {
        "spec": {
            "volumes": [
                {"name": "scratch", "emptyDir": {"sizeLimit": 1073741824}},
                {"name": "bare"},
            ],
            "containers": [
                {"name": ENGINE, "resources": {"requests": {}}},
                a_container(
                    args=[None, "a"],
                    resources={"limits": {}, "requests": {"cpu": "0.0625"}},
                    env=[
                        {
                            "name": "CPUS",
                            "valueFrom": {
                                "resourceFieldRef": {"resource": "limits.cpu", "divisor": 1}
                            },
                        },
                        {
                            "name": "MEMORY",
                            "valueFrom": {
                                "resourceFieldRef": {
                                    "resource": "limits.memory",
                                    "divisor": "1024Ki",
                                }
                            },
                        },
                    ],
                    livenessProbe={
                        "httpGet": {"port": 80, "httpHeaders": [{"name": "X", "value": ""}]},
                        "failureThreshold": 0,
                        "periodSeconds": 0,
                        "successThreshold": 0,
                        "timeoutSeconds": 0,
                    },
                ),
            ],
        }
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """A template that is refused, and the field that is named for it."""

    id: str
    template: Any
    field: str
    is_in_policy: bool = True
    """The API server's policy refuses it too; else only the operator reads so far."""
    is_typed: bool = True
    """It has the types of a pod: of another CEL cannot say where."""


def _a(name: str, template: Any, field: str, **more: bool) -> Hostile:
    return Hostile(id=name, template=template, field=field, **more)


_SIDE, _ENGINE, _INIT = "spec.containers[0]", "spec.containers[0]", "spec.initContainers[0]"
_MORE = "spec.volumes[0]"
HOSTILE: tuple[Hostile, ...] = (
    _a("privileged", sidecar(securityContext={"privileged": True}),
       f"{_SIDE}.securityContext.privileged"),
    _a("escalation", sidecar(securityContext={"allowPrivilegeEscalation": True}),
       f"{_SIDE}.securityContext.allowPrivilegeEscalation"),
    _a("capability", sidecar(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
       f"{_SIDE}.securityContext.capabilities.add"),
    _a("root", sidecar(securityContext={"runAsUser": 0}), f"{_SIDE}.securityContext.runAsUser"),
    _a("rootless not", {"spec": {"securityContext": {"runAsNonRoot": False}}},
       "spec.securityContext.runAsNonRoot"),
    _a("another user", {"spec": {"securityContext": {"runAsUser": 1}}},
       "spec.securityContext.runAsUser"),
    _a("unmasked proc", sidecar(securityContext={"procMount": "Unmasked"}),
       f"{_SIDE}.securityContext.procMount"),
    _a("seccomp", sidecar(securityContext={"seccompProfile": {"type": "Unconfined"}}),
       f"{_SIDE}.securityContext.seccompProfile.type"),
    *(_a(f"a seccomp profile at {path}", sidecar(securityContext={
        "seccompProfile": {"type": "Localhost", "localhostProfile": path}}),
         f"{_SIDE}.securityContext.seccompProfile.localhostProfile")
      for path in ("../../x", "a/..", "/etc/x")),
    _a("SELinux", sidecar(securityContext={"seLinuxOptions": {"type": "spc_t"}}),
       f"{_SIDE}.securityContext.seLinuxOptions"),
    _a("privileged init", {"spec": {"initContainers": [
        a_container(securityContext={"privileged": True})]}},
       f"{_INIT}.securityContext.privileged"),
    _a("ephemeral container", {"spec": {"ephemeralContainers": [a_container()]}},
       "spec.ephemeralContainers"),
    _a("host network", {"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
    _a("host PIDs", {"spec": {"hostPID": True}}, "spec.hostPID"),
    _a("host IPC", {"spec": {"hostIPC": True}}, "spec.hostIPC"),
    _a("host users", {"spec": {"hostUsers": True}}, "spec.hostUsers"),
    _a("host port", sidecar(ports=[{"containerPort": 22, "hostPort": 22}]),
       f"{_SIDE}.ports[0].hostPort"),
    *(_a(f"a host for the {name}", sidecar(**{name: {kind: {"port": 10255, "host": host}}}),
         f"{_SIDE}.{name}.{kind}.host")
      for name in ("livenessProbe", "readinessProbe", "startupProbe")
      for kind, host in (("httpGet", "127.0.0.1"), ("tcpSocket", "169.254.169.254"))),
    *(_a(f"a host for {name}, before the engine", {"spec": {"initContainers": [
        a_container(lifecycle={name: {"httpGet": {"port": 80, "host": "169.254.169.254"}}})]}},
         f"{_INIT}.lifecycle.{name}.httpGet.host")
      for name in ("postStart", "preStop")),
    _a("a host for a socket of a hook",
       sidecar(lifecycle={"preStop": {"tcpSocket": {"port": 1, "host": "127.0.0.1"}}}),
       f"{_SIDE}.lifecycle.preStop.tcpSocket"),
    _a("sysctls", {"spec": {"securityContext": {
        "sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}}, "spec.securityContext.sysctls"),
    _a("AppArmor", sidecar(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
       f"{_SIDE}.securityContext.appArmorProfile"),
    _a("a process of a Windows node",
       sidecar(securityContext={"windowsOptions": {"hostProcess": True}}),
       f"{_SIDE}.securityContext.windowsOptions"),
    _a("host path", with_volume(hostPath={"path": "/"}), f"{_MORE}.hostPath"),
    _a("CSI", with_volume(csi={"driver": "example.test"}), f"{_MORE}.csi"),
    _a("a whole Secret", with_volume(secret={"secretName": "s"}), f"{_MORE}.secret.items"),
    _a("a whole Secret, projected", with_volume(projected={"sources": [{"secret": {"name": "s"}}]}),
       f"{_MORE}.projected.sources[0].secret.items"),
    _a("a token, projected", with_volume(
        projected={"sources": [{"serviceAccountToken": {"path": "token"}}]}),
       f"{_MORE}.projected.sources[0].serviceAccountToken"),
    _a("a token", {"spec": {"automountServiceAccountToken": True}},
       "spec.automountServiceAccountToken"),
    _a("a whole Secret as variables", sidecar(envFrom=[{"secretRef": {"name": "s"}}]),
       f"{_SIDE}.envFrom[0].secretRef"),
    _a("a node", {"spec": {"nodeName": "gpu-0"}}, "spec.nodeName"),
    _a("a node past its labels", {"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["gpu-0"]}]}]}}}}},
       "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
       ".nodeSelectorTerms[0].matchFields"),
    _a("a path in a volume", sidecar(volumeMounts=[
        {"name": "cache", "mountPath": "/c", "subPath": "../../etc"}]),
       f"{_SIDE}.volumeMounts[0].subPath"),
    _a("a path of variables", sidecar(volumeMounts=[
        {"name": "cache", "mountPath": "/c", "subPathExpr": "$(X)"}]),
       f"{_SIDE}.volumeMounts[0].subPathExpr"),
    _a("propagation", sidecar(volumeMounts=[
        {"name": "cache", "mountPath": "/c", "mountPropagation": "Bidirectional"}]),
       f"{_SIDE}.volumeMounts[0].mountPropagation"),
    _a("a device", sidecar(volumeDevices=[{"name": "more", "devicePath": "/dev/x"}]),
       f"{_SIDE}.volumeDevices"),
    _a("a GPU", sidecar(resources={"limits": {"nvidia.com/gpu": 1}}),
       f"{_SIDE}.resources.limits[nvidia.com/gpu]"),
    _a("a slice", sidecar(resources={"limits": {"nvidia.com/mig-1g.10gb": 1}}),
       f"{_SIDE}.resources.limits[nvidia.com/mig-1g.10gb]"),
    *(_a(f"a GPU as {name}", sidecar(resources={"limits": {name: 1}}),
         f"{_SIDE}.resources.limits[{name}]")
      for name in ("tencent.com/vcuda-core", "huawei.com/Ascend910", "smarter-devices/nvidia0")),
    _a("a GPU of AMD", sidecar(resources={"requests": {"amd.com/gpu": 1}}),
       f"{_SIDE}.resources.requests[amd.com/gpu]"),
    _a("a GPU before the engine", {"spec": {"initContainers": [
        a_container(resources={"limits": {"example.test/GPU-shared": 1}})]}},
       f"{_INIT}.resources.limits[example.test/GPU-shared]"),
    _a("more GPUs for the engine", engine(resources={"limits": {"nvidia.com/gpu": 8}}),
       f"{_ENGINE}.resources.limits[nvidia.com/gpu]"),
    _a("a claim of devices", {"spec": {"resourceClaims": [{"name": "gpu"}]}},
       "spec.resourceClaims"),
    _a("devices of a claim", sidecar(resources={"claims": [{"name": "gpu"}]}),
       f"{_SIDE}.resources.claims"),
    _a("GPUs by a variable", sidecar(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
       f"{_SIDE}.env[0].name"),
    _a("GPUs by a mount", sidecar(volumeMounts=[
        {"name": "cache", "mountPath": "/var/run/nvidia-container-devices/all"}]),
       f"{_SIDE}.volumeMounts[0].mountPath"),
    _a("GPUs by a mount with another path", sidecar(volumeMounts=[
        {"name": "cache", "mountPath": "/var//run/nvidia-container-devices/all"}]),
       f"{_SIDE}.volumeMounts[0].mountPath"),
    _a("GPUs by a mount with a path from nowhere", sidecar(volumeMounts=[
        {"name": "cache", "mountPath": "var/run/nvidia-container-devices/all"}]),
       f"{_SIDE}.volumeMounts[0].mountPath"),
    _a("GPUs by a class of devices", sidecar(resources={
        "limits": {"deviceclass.resource.kubernetes.io/mig.nvidia.com": 1}}),
       f"{_SIDE}.resources.limits[deviceclass.resource.kubernetes.io/mig.nvidia.com]"),
    _a("GPUs by an annotation", {"metadata": {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=0"}}},
       "metadata.annotations[cdi.k8s.io/x]"),
    _a("another image of the engine", engine(image="example.test/mine"), f"{_ENGINE}.image"),
    _a("another command", engine(command=["sh"]), f"{_ENGINE}.command"),
    _a("other arguments", engine(args=["--trust-remote-code"]), f"{_ENGINE}.args"),
    _a("other ports", engine(ports=[{"containerPort": 1}]), f"{_ENGINE}.ports"),
    _a("another probe", engine(readinessProbe={"exec": {"command": ["true"]}}),
       f"{_ENGINE}.readinessProbe"),
    _a("another preStop", engine(lifecycle={"preStop": {"exec": {"command": ["true"]}}}),
       f"{_ENGINE}.lifecycle"),
    *(_a(f"{name} of the engine", engine(env=[{"name": name, "value": "1"}]),
         f"{_ENGINE}.env[0].name")
      for name in ("HOME", "HF_TOKEN", "VLLM_PORT", "CUDA_VISIBLE_DEVICES",
                   "NVIDIA_VISIBLE_DEVICES", "PROMETHEUS_MULTIPROC_DIR", "LWS_LEADER_ADDRESS")),
    _a("variables nobody names", engine(envFrom=[{"configMapRef": {"name": "c"}}]),
       f"{_ENGINE}.envFrom"),
    *(_a(f"a mount of the engine at {path}", engine(volumeMounts=[
        {"name": "more", "mountPath": path}]), f"{_ENGINE}.volumeMounts[0].mountPath")
      for path in ("/cache", "/cache/", "/dev/shm", "/dev/shm/tonnage", "/mnt/../cache",  # noqa: S108
                   "/", "/dev", "/proc", "/tonnage/home",
                   "/var/run/nvidia-container-devices/all")),
    _a("a volume of ours", {"spec": {"volumes": [{"name": "cache", "emptyDir": {}}]}},
       f"{_MORE}.name"),
    _a("a second engine", {"spec": {"initContainers": [a_container(name=ENGINE)]}},
       f"{_INIT}.name"),
    _a("requests of the engine", sidecar(ports=[{"name": "http", "containerPort": 80}]),
       f"{_SIDE}.ports[0].name"),
    _a("the grace period", {"spec": {"terminationGracePeriodSeconds": 0}},
       "spec.terminationGracePeriodSeconds"),
    _a("a restart policy", {"spec": {"restartPolicy": "Never"}}, "spec.restartPolicy"),
    _a("a label of ours", {"metadata": {"labels": {"tonnage.dev/managed": "false"}}},
       "metadata.labels[tonnage.dev/managed]"),
    _a("an annotation of ours", {"metadata": {"annotations": {"prometheus.io/port": "1"}}},
       "metadata.annotations[prometheus.io/port]"),
    _a("finalizers", {"metadata": {"finalizers": ["a/b"]}}, "metadata.finalizers"),
    _a("the cluster's priority", {"spec": {"priorityClassName": "system-node-critical"}},
       "spec.priorityClassName"),
    _a("an account of no name", {"spec": {"serviceAccountName": ["default"]}},
       "spec.serviceAccountName", is_typed=False),
    _a("a pull secret of no name", {"spec": {"imagePullSecrets": [{"name": {"a": 1}}]}},
       "spec.imagePullSecrets[0].name", is_in_policy=False),
    _a("a status", {"status": {}}, "status"),
    _a("a mistyped field", {"spec": {"nodeSelektor": {}}}, "spec.nodeSelektor"),
    _a("no list", {"spec": {"containers": {}}}, "spec.containers",
       is_in_policy=False),
    _a("no object", {"spec": {"affinity": []}}, "spec.affinity", is_typed=False),
    _a("null", {"spec": {"nodeSelector": None}}, "spec.nodeSelector", is_in_policy=False),
    _a("no image", {"spec": {"containers": [{"name": "side"}]}}, f"{_SIDE}.image"),
    _a("no quantity", engine(resources={"limits": {"cpu": "many"}}),
       f"{_ENGINE}.resources.limits[cpu]", is_in_policy=False),
    _a("a label that is no text", {"metadata": {"labels": {"a": 1}}}, "metadata.labels[a]",
       is_in_policy=False),
    _a("a megabyte", {"metadata": {"annotations": {"a": "x" * 2**20}}}, "",
       is_in_policy=False),
)  # fmt: skip
