"""Hostile and mistaken input, row by row: what stands in a manifest, and who says no.

The rows are numbered as in the project's list of hostile input, so that a report shows which of
them a run has covered. A row that is not here is covered where ``ELSEWHERE`` says.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ROWS: Mapping[int, str] = {
    1: "minimum above maximum",
    2: "a count that is none",
    3: "no upper bound",
    4: "a rate or share that is none",
    5: "a duration that is none",
    6: "a model id that is a path, or deceives",
    7: "a model id that is an address",
    8: "shell text in arguments",
    9: "arguments that are not allowed, or override ours",
    10: "environment variables",
    11: "a reference into another namespace",
    12: "parts of a pod template",
    13: "a service account",
    16: "a scale target outside the rules",
    19: "a name too long, or with dots",
    20: "labels and annotations too large",
    21: "a query in a label",
    23: "a query of the user's own",
    24: "a Prometheus of the user's own",
    28: "YAML that attacks its reader",
    30: "YAML that reads as something else",
    31: "lists, strings and objects too large",
    32: "very many objects",
    34: "replicas written through the scale subresource",
    40: "GPUs that are none, too many, or unknown",
    41: "a split that the model does not allow",
    42: "a model or a context that does not fit",
    43: "a hostile config.json",
    44: "figures beyond all bounds",
    46: "text that forges a log line",
}
ELSEWHERE: Mapping[str, Iterable[int]] = {
    "tests/cluster/test_admission_policy.py": (14, 15),
    "the running operator: tests of the loop": (17, 18, 22, 33, 35, 36, 37, 38, 47),
    "the Prometheus client": (25, 26, 27),
    "the command line": (29, 45, 49),
    "RBAC and settings: tests/chart": (39, 48),
    "the operator's own server": (50,),
}

GOOD: Mapping[str, Any] = {
    "apiVersion": "tonnage.dev/v1alpha1",
    "kind": "ModelDeployment",
    "metadata": {"name": "llama"},
    "spec": {
        "model": {"id": "meta-llama/Llama-3.3-70B-Instruct", "weights": "fp8"},
        "hardware": {"gpu": "H200"},
        "contextLength": 8192,
        "slo": {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "50ms"}},
        "demand": {
            "requestsPerSecond": 4,
            "promptTokens": {"mean": 4000, "p99": 7000},
            "outputTokens": {"mean": 1000},
        },
        "scaling": {"maxReplicas": 8},
        "engine": {"version": "0.33"},
    },
}
"""A valid manifest; everything below is one change away from it."""

ABSENT = object()
Change = tuple[str, Any]


def manifest(*changes: Change) -> dict[str, Any]:
    """Return the good manifest with some fields set, or taken away."""
    made: dict[str, Any] = copy.deepcopy(dict(GOOD))
    for path, value in changes:
        *parents, last = path.split(".")
        node = made
        for name in parents:
            node = node.setdefault(name, {})
        if value is ABSENT:
            node.pop(last, None)
        else:
            node[last] = value
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class BadInput:
    """One manifest that must be refused by both the API server and the parser."""

    row: int
    changes: tuple[Change, ...]
    field: str
    """The path that every refusal names."""
    shows: tuple[str, ...] = ()
    """What every refusal repeats: the numbers, or the form that is allowed."""

    @property
    def id(self) -> str:
        path, value = self.changes[-1]
        shown = "absent" if value is ABSENT else ascii(value)[:60]
        return f"row-{self.row:02d}-{path.removeprefix('spec.')}-{shown}"


def each(row: int, path: str, *values: Any, field: str = "", shows: tuple[str, ...] = ()):
    """Make one case for each value of a field."""
    return [
        BadInput(row=row, changes=((path, value),), field=field or path, shows=shows)
        for value in values
    ]


SCALING, DEMAND, MODEL, PODS = "spec.scaling", "spec.demand", "spec.model", "spec.pods"
SPECULATIVE = "spec.engine.speculative"
SCHEDULES = "spec.scaling.schedules"
SCHEDULE: Mapping[str, Any] = {
    "cron": "0 8 * * 1-5", "timeZone": "Europe/Berlin", "duration": "2h", "minReplicas": 4,
}  # fmt: skip
TENSOR = ("spec.hardware.parallelism", {"tensor": 1})
TTFT = "spec.slo.timeToFirstToken.p95"
ATTAINED = "spec.slo.attainment.percent"
LONG_DURATION_FORM = ("30m or 2h", "at most 168h")
RATE_FORM = ("positive whole number", '"0.5"')
DURATION_FORM = ("50ms, 1.5s or 5m", "at most 1h")
UNICODE_TRICKS = ("a/\u202eb", "a/\u200bb", "\u0430/b", "\uff41/b", "a/b\u0301")
ZONES = {"topologyKey": "topology.kubernetes.io/zone"}


def variable(name: str) -> dict[str, Any]:
    """Return an environment variable from a Secret."""
    return {"name": name, "secretKeyRef": {"name": "store", "key": "id"}}


def scheduled(row: int, name: str, *values: Any, shows: tuple[str, ...] = ()):
    """Make one case for each value of a field of a schedule."""
    made = ([{name: value} | SCHEDULE | {name: value}] for value in values)
    return each(row, SCHEDULES, *made, field=f"{SCHEDULES}.0.{name}", shows=shows)


REFUSED: tuple[BadInput, ...] = (
    *each(1, SCALING, {"minReplicas": 5, "maxReplicas": 2},
          shows=("minReplicas 5", "maxReplicas 2")),
    *each(1, f"{DEMAND}.promptTokens", {"mean": 40, "p99": 5}, shows=("p99 5", "mean 40")),
    *each(1, "spec.contextLength", 100, field="demand", shows=("5000", "contextLength 100")),
    *each(2, f"{SCALING}.maxReplicas", 2**31, 0, -1, 1.5, "3", "1e3", True, [3], {"max": 3}),
    *each(2, f"{SCALING}.minReplicas", 0, -1, 1001, "1"),
    *each(1, SCHEDULES, [SCHEDULE, {**SCHEDULE, "minReplicas": 9}], field=SCALING,
          shows=("minReplicas 9", "maxReplicas 8")),
    *scheduled(2, "minReplicas", 0, -1, 1001, 1.5, "4"),
    *each(3, SCHEDULES, [{"cron": "0 8 * * *", "duration": "2h"}], field=f"{SCHEDULES}.0",
          shows=("needs minReplicas or requestsPerSecond",)),
    *scheduled(4, "requestsPerSecond", 0, "-1", "NaN", "1e3", shows=RATE_FORM),
    *scheduled(5, "duration", "0m", "-5m", "30s", "1d", "169h", "10081m", "2h\n", "1h30m", "",
               shows=LONG_DURATION_FORM),
    *scheduled(5, "cron", "", "@daily", "0 8 * *", "0 0 8 * * 1", "0 8 * * 1-5\n", "0  8 * * 1",
               "0 8 L * *", "0 8 * * 1L", "0 8 * * 1#2", "* * * * \u0661", "$(id) * * * *",
               shows=("five fields", "0 8 * * 1-5")),
    *scheduled(6, "timeZone", "", "localtime", "../etc/passwd", "/etc/localtime",
               "Europe/../Berlin", "Europe/Berlin\n", "posix/Europe/Berlin",
               shows=("such as Europe/Berlin",)),
    *each(2, f"{SCALING}.priority", -1001, 1001, 0.5, "high"),
    *each(3, f"{SCALING}.maxReplicas", ABSENT),
    *each(3, SCALING, ABSENT, {}),
    *each(4, f"{DEMAND}.requestsPerSecond", 0, -1, "0", "0.0", "-1", "NaN", ".inf", "Infinity",
          "1e3", "0x10", "\u0661\u0662", "101%", "1\n", " 1", "", "1_000", "0.00001",
          shows=RATE_FORM),
    *each(4, f"{DEMAND}.requestsPerSecond", 0.5, True, [4]),
    *each(4, f"{DEMAND}.cachedPromptPercent", -1, 100, 101, 0.5, "50"),
    *each(4, f"{DEMAND}.tokensPerDay", 5, field=DEMAND, shows=("at most one of",)),
    *each(4, f"{DEMAND}.peakPercent", 99, 10_001, 0.5, "200"),
    *each(4, f"{DEMAND}.dutyCyclePercent", 50, field=DEMAND, shows=("needs concurrentUsers",)),
    *each(5, TTFT, "0s", "-5m", "1y", "1 day", "9999999h", "5", "2S", "2s\n", "61m", "3600001ms",
          "0.0s", "0.000s", "1.s", ".5s", "1.2345s", "60.001m", "\u0662s", "", shows=DURATION_FORM),
    *each(5, TTFT, 5, True),
    *each(5, "spec.slo.timeToFirstToken", {}, shows=("one of p50, p90, p95, p99",)),
    *each(4, ATTAINED, 49, 100, -1, "99.555", "99,5", "NaN", "1e2", "", "99\n", " 99",
          shows=("from 50 to 99", '"99.5"')),
    *each(4, ATTAINED, 99.5, True, [99]),
    *each(5, "spec.slo.attainment.window", "0h", "-5h", "1d", "169h", "2h\n", "1h30m", "",
          "59m", "10081m", shows=("from 1h to 168h",)),
    *each(5, "spec.slo", {"attainment": {}}, shows=("attainment needs a target",)),
    *each(6, f"{MODEL}.id", "../../etc/passwd", "/", "/a/../b", "/a//b", "a//b", "a/b/c", "..",
          "a", "a/..", "x\ny", "a/b\n", "a/" + "b" * 300, "", *UNICODE_TRICKS),
    *each(6, f"{MODEL}.revision", "../../x", "a/../b", "--help", "a b", "r" * 101, ""),
    *each(7, f"{MODEL}.id", "http://169.254.169.254/latest/meta-data", "gopher://a/b", "s3://b/c",
          "file:///var/run/secrets/kubernetes.io/serviceaccount/token", "//169.254.169.254/latest"),
    *each(8, "spec.engine.args", ["; rm -rf /"], ["$(id)"], ["--seed=$(id)"], ["--seed=`id`"],
          ["--seed=1\n--port=22"], ["--seed=1;id"], ["--seed=$HOME"], ["--seed=1|sh"], ["--seed=&"],
          field="spec.engine.args.0"),
    *each(9, "spec.engine.args", ["--worker-cls=a.B"], ["--api-key=secret"], ["--port=22"],
          ["--tool-server=demo"], ["--max-model-len=1"], ["--max_model_len=1"],
          ["--max-num-seqs=9"], ["--tensor-parallel-size=8"], ["1"], ["-tp=8"], ["--SEED=1"], [""],
          ["--gpu-memory-utilization=1"], field="spec.engine.args.0"),
    *each(9, "spec.engine.args", ["--seed=1", "--seed=2"], ["--seed=1", "--seed"],
          field="spec.engine", shows=("must not be repeated",)),
    *each(4, f"{DEMAND}.arrivalScv", 0, -1, 0.5, 101, "4"),
    *each(4, f"{SPECULATIVE}.acceptedPercent", -1, 101, 0.8, "80", ABSENT),
    *each(2, f"{SPECULATIVE}.tokens", 0, -1, 17, 1.5, "2", ABSENT),
    *each(9, f"{SPECULATIVE}.method", "eagle", "draft_model", "", "../x", ABSENT),
    *each(9, "spec.engine.args", ["--speculative-config={}"], ["--max-num-batched-tokens=4096"],
          field="spec.engine.args.0"),
    *each(4, "spec.model.adapters", {"number": 0, "rank": 16}, {"number": 257, "rank": 16},
          field="spec.model.adapters.number"),
    *each(9, "spec.model.adapters", {"number": 1, "rank": 0}, {"number": 1, "rank": 24},
          {"number": 1, "rank": 1024}, {"number": 1, "rank": "16"}, {"number": 1},
          field="spec.model.adapters.rank"),
    *each(9, "spec.engine.args", ["--enable-lora"], ["--max-loras=4"], field="spec.engine.args.0"),
    *each(9, "spec.engine.admission", "intime", "none", "", True),
    BadInput(row=9, changes=(("spec.engine.admission", "inTime"),
                             ("spec.slo.timeToFirstToken", ABSENT)),
             field="engine.admission", shows=("slo.timeToFirstToken",)),
    BadInput(row=9, changes=(("spec.engine.role", "decode"), TENSOR,
                             ("spec.engine.admission", "inTime")),
             field="engine.admission", shows=("engine.role decode or topology",)),
    *each(9, "spec.engine.role", "Prefill", "both", "", True),
    BadInput(row=9, changes=(("spec.engine.role", "prefill"), TENSOR),
             field="slo.timePerOutputToken", shows=("target of decode",)),
    BadInput(row=9, changes=(("spec.engine.role", "decode"), TENSOR,
                             (f"{PODS}.networkPolicy", {})),
             field="pods.networkPolicy", shows=("engine.role",)),
    BadInput(row=9, changes=(("spec.engine.role", "decode"),),
             field="hardware", shows=("parallelism.tensor",)),
    BadInput(row=9, changes=(("spec.engine.role", "decode"), TENSOR,
                             ("spec.demand.requestsPerSecond", ABSENT),
                             ("spec.demand.concurrentUsers", 200)),
             field="demand.concurrentUsers", shows=("a rate",)),
    BadInput(row=9, changes=(("spec.engine", ABSENT),
                             ("spec.scaleTarget", {"name": "my-vllm", "role": "both"})),
             field="spec.scaleTarget.role"),
    BadInput(row=9, changes=(("spec.engine", ABSENT),
                             ("spec.scaleTarget", {"name": "my-vllm", "role": "prefill"})),
             field="slo.timePerOutputToken", shows=("target of decode",)),
    *each(9, "spec.demand.cacheTransfer", "0ms", "50", 50, "2h"),
    *(BadInput(row=1, changes=(*changes, (f"spec.topology.{role}", own)), field=field,
               shows=(f"of role {role}",))
      for role, own, field, *changes in (
        ("prefill", {"minReplicas": 9}, "topology.prefill"),
        ("decode", {"maxReplicas": 1}, "topology.decode", ("spec.scaling.minReplicas", 2)),
        ("decode", {"maxReplicas": 2}, "scaling.schedules", ("spec.scaling.schedules", [
            {"cron": "0 8 * * *", "duration": "2h", "minReplicas": 5}])),
        ("prefill", {"maxReplicas": 2}, "disruptionBudget",
         (f"{PODS}.disruptionBudget", {"minAvailable": 3})),
      )),
    *each(3, "spec.model.kvOffload.mode", "On", "auto", True),
    BadInput(row=41, changes=(("spec.model.kvOffload", {"mode": "Always"}),),
             field="spec.model.kvOffload", shows=("set gib (of host memory) or workingSetTokens",)),
    *each(4, "spec.topology.kvLink", "0GB/s", "0.0Gb/s", "50", "50GB", "fast", "-1GB/s", 50),
    BadInput(row=1, changes=(("spec.topology.prefill", {"minReplicas": 3, "maxReplicas": 2}),),
             field="spec.topology.prefill", shows=("minReplicas must not exceed",)),
    *each(2, "spec.topology.decode.maxReplicas", 0, 1001, "2"),
    BadInput(row=41, changes=(("spec.topology.decode.parallelism", {"pipeline": 2}),),
             field="spec.topology.decode", shows=("pipeline must be 1",)),
    *(BadInput(row=9, changes=(*changes, ("spec.topology", {"kvLink": f"{number}GB/s"})),
               field=field, shows=(shown,))
      for number, (changes, field, shown) in enumerate((
        ((("spec.slo.timePerOutputToken", ABSENT),), "slo", "topology needs both"),
        ((("spec.demand", ABSENT),), "demand", "topology needs one of"),
        ((("spec.demand.requestsPerSecond", ABSENT), ("spec.demand.concurrentUsers", 200)),
         "demand", "topology needs one of"),
        ((("spec.demand.cacheTransfer", "20ms"),), "demand", "which computes it"),
        ((("spec.engine.role", "decode"), TENSOR), "engine", "engine.role must not be set"),
        ((("spec.model.kvOffload", {"gib": 1}),), "model", "one KV connector"),
        ((("spec.hardware.parallelism", {"pipeline": 2}),), "hardware", "pipeline must be 1"),
        ((("metadata.name", "x" * 45),), "metadata.name", "at most 44 characters"),
      ), 1)),
    *each(9, "spec.engine.maxNumBatchedTokens", 0, 31, 1_048_577, "4096", 4096.5),
    *each(10, "spec.env", [{"name": "LD_PRELOAD", "value": "/x.so"}]),
    *each(10, "spec.engine.env", [{"name": "HF_TOKEN", "value": "hf_secret"}]),
    *each(10, "spec.pods.env", [{"name": "PYTHONPATH", "value": "$(OTHER)"}]),
    *each(10, f"{PODS}.env", [variable("PLAIN") | {"value": "x"}],
          field=f"{PODS}.env.0.value"),
    *each(10, f"{PODS}.env", *([variable(name)] for name in (
              "PYTHONPATH", "HOME", "USER", "HF_HOME", "HF_TOKEN", "VLLM_API_KEY", "VLLM_PLUGINS",
              "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "PROMETHEUS_MULTIPROC_DIR",
              "KUBERNETES_SERVICE_HOST", "", "1A", "A-B", "A B", "A\n", "A" * 129)),
          field=f"{PODS}.env.0.name"),
    *each(10, f"{PODS}.env", [variable("A"), variable("A")], field=PODS,
          shows=("name must not be repeated",)),
    *each(10, "spec.pods.envFrom", [{"secretRef": {"name": "other"}}]),
    *each(11, f"{PODS}.huggingFaceTokenSecret", {"name": "hf", "namespace": "kube-system"},
          field=f"{PODS}.huggingFaceTokenSecret.namespace"),
    *each(11, f"{MODEL}.config.configMapKeyRef", {"name": "m", "key": "k", "namespace": "other"},
          field=f"{MODEL}.config.configMapKeyRef.namespace"),
    *each(11, f"{PODS}.apiKeySecret", {"name": "key", "key": "k", "namespace": "kube-system"},
          field=f"{PODS}.apiKeySecret.namespace"),
    *each(11, f"{PODS}.apiKeySecret", {"name": "key"}, field=f"{PODS}.apiKeySecret.key"),
    *each(11, f"{PODS}.imagePullSecrets", [{"name": "other/pull"}],
          field=f"{PODS}.imagePullSecrets.0.name"),
    *each(11, f"{PODS}.modelCacheClaim", "other/claim", "../claim"),
    *each(11, PODS, {"compileCache": "Claim"}, shows=("Claim needs modelCacheClaim",)),
    *each(11, f"{PODS}.compileCache", "claim", "/mnt"),
    *each(12, "spec.template", {"spec": {"hostNetwork": True}}),
    *[case for name in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")
      for case in each(12, f"{PODS}.{name}", True)],
    *each(12, f"{PODS}.securityContext", {"privileged": True}),
    *each(12, f"{PODS}.volumes", [{"name": "host", "hostPath": {"path": "/"}}]),
    *each(12, f"{PODS}.initContainers", [{"name": "x", "image": "x"}]),
    *each(12, f"{PODS}.containers", [{"ports": [{"hostPort": 22}], "procMount": "Unmasked"}]),
    *each(13, f"{PODS}.serviceAccountName", "kube-system/default", "../default", "Default", "",
          "system:serviceaccount:kube-system:default", {"name": "default"}),
    *each(13, f"{PODS}.automountServiceAccountToken", True),
    *each(13, f"{PODS}.priorityClassName", "system-node-critical", "system-cluster-critical",
          shows=("must not begin with system-",)),
    *each(13, "spec.serviceAccountName", "tonnage"),
    *each(12, f"{PODS}.user", {"id": 0}, {"id": -1}, {"id": "1000"}, {"id": 2**31},
          field=f"{PODS}.user.id"),
    *each(12, f"{PODS}.user", {"privileged": True}, field=f"{PODS}.user.privileged"),
    *each(12, f"{PODS}.fsGroupChangePolicy", "Never", ""),
    *each(12, f"{PODS}.labels", *({name: "x"} for name in (
              "tonnage.dev/managed", "tonnage.dev/model-deployment", "x.tonnage.dev/y",
              "app.kubernetes.io/name", "app.kubernetes.io/instance", "pod-template-hash",
              "app.kubernetes.io/managed-by")), shows=("is reserved", "label ")),
    *each(12, f"{PODS}.annotations", *({name: "x"} for name in (
              "prometheus.io/port", "tonnage.dev/flags", "seccomp.security.alpha.kubernetes.io/pod",
              "controller.kubernetes.io/pod-deletion-cost", "cdi.k8s.io/gpu",
              "container.apparmor.security.beta.kubernetes.io/vllm")),
          shows=("is reserved and must not be set", "annotation ")),
    *each(12, f"{PODS}.gpuNodes", [{"key": "gpu"}], [{"key": "gpu", "operator": "NotIn"}],
          [{"key": "gpu", "operator": "Exists", "values": ["x"]}], field=f"{PODS}.gpuNodes.0",
          shows=("need values",)),
    *each(12, f"{PODS}.gpuNodes", [{"key": "gpu", "operator": "Gt", "values": ["1"]}],
          field=f"{PODS}.gpuNodes.0.operator"),
    *each(12, f"{PODS}.topologySpreadConstraints", [ZONES, ZONES | {"maxSkew": 2}], field=PODS,
          shows=("topologyKey must not be repeated",)),
    *each(12, f"{PODS}.topologySpreadConstraints", [ZONES | {"labelSelector": {}}],
          field=f"{PODS}.topologySpreadConstraints.0.labelSelector"),
    *each(2, f"{PODS}.topologySpreadConstraints", [ZONES | {"maxSkew": 0}],
          field=f"{PODS}.topologySpreadConstraints.0.maxSkew"),
    *each(2, f"{PODS}.groupTopology", "", "a rack", "example.com/rack=1", 1),
    *each(4, f"{PODS}.disruptionBudget", {}, {"minAvailable": 1, "maxUnavailable": 1},
          shows=("one of minAvailable, maxUnavailable",)),
    *each(4, f"{PODS}.disruptionBudget.maxUnavailable", 0, -1, 1000, "0%", "100%", "1", "%", "",
          "50 %", "5%\n", shows=("1 to 999", "1% to 99%")),
    *each(4, f"{PODS}.disruptionBudget.maxUnavailable", 0.5, True, [1]),
    *each(2, f"{PODS}.maxSurge", -1, 2, 0.5, "0", True),
    *each(1, f"{PODS}.disruptionBudget", {"minAvailable": 8}, field="disruptionBudget",
          shows=("minAvailable must be below maxReplicas",)),
    *each(1, PODS, {"cpu": "8", "cpuLimit": "7500m"}, {"cpu": "1k", "cpuLimit": "999"},
          shows=("cpu must not exceed cpuLimit",)),
    *each(1, PODS, {"memory": "1Gi", "memoryLimit": "1G"},
          shows=("memory must not exceed memoryLimit",)),
    *each(1, PODS, {"ephemeralStorage": "2Ti", "ephemeralStorageLimit": "2T"},
          shows=("ephemeralStorage must not exceed ephemeralStorageLimit",)),
    *each(44, f"{PODS}.memoryLimit", "1e308", "0", "-1Gi", "0.5Gi"),
    *each(44, f"{PODS}.sharedMemory", "999999999Ti", "1000000Ti", "1000000T"),
    *each(12, f"{PODS}.networkPolicy.clients", [{}], [{"podSelector": {}}],
          field=f"{PODS}.networkPolicy.clients.0", shows=("namespaceSelector or podSelector",)),
    *each(12, f"{PODS}.networkPolicy.clients", [{"ipBlock": {"cidr": "0.0.0.0/0"}}],
          field=f"{PODS}.networkPolicy.clients.0.ipBlock"),
    *each(2, f"{PODS}.networkPolicy.egressPorts", [0], [65_536], ["443"],
          field=f"{PODS}.networkPolicy.egressPorts.0"),
    *each(16, "spec.scaleTarget", {"name": "web"}, field="spec", shows=("with scaleTarget",)),
    BadInput(
        row=16,
        changes=(
            ("spec.engine", ABSENT),
            ("spec.scaleTarget", {"name": "web", "namespace": "kube-system"}),
        ),
        field="spec.scaleTarget.namespace",
    ),
    BadInput(
        row=16,
        changes=(("spec.engine", ABSENT), ("spec.scaleTarget", {"name": "web", "kind": "Job"})),
        field="spec.scaleTarget.kind",
    ),
    BadInput(
        row=16,
        changes=(("spec.engine", ABSENT), ("spec.scaleTarget", {"name": "kube-system/dns"})),
        field="spec.scaleTarget.name",
    ),
    *each(16, "spec.engine", ABSENT, field="spec", shows=("engine is required",)),
    *each(19, "metadata.name", "a" * 253, "a" * 53, "a.b", "1a", "A", "a_b", "-a", "a-",
          shows=("DNS label",)),
    *each(23, "spec.query", 'count({__name__=~".+"})'),
    *each(23, "spec.slo.query", "x" * 1000),
    *each(24, "spec.prometheusUrl", "http://localhost:10255", "http://user:pass@host", "http://[::1]"),
    *each(24, "spec.metrics", {"url": "http://0x7f.1"}),
    *each(31, "spec.engine.args", [f"--seed={n}" for n in range(1000)],
          shows=("at most 32 items",)),
    *each(31, SCHEDULES, [SCHEDULE] * 21, shows=("at most 20 items",)),
    *scheduled(31, "cron", "0 8 * * " + "1," * 10_000 + "1"),
    *each(31, f"{PODS}.tolerations", [{"key": "a"}] * 1000, shows=("at most 16 items",)),
    *each(31, f"{PODS}.nodeSelector", {f"k{n}": "v" for n in range(1000)},
          shows=("at most 16 items",)),
    *each(31, f"{PODS}.env", [variable(f"A{n}") for n in range(33)], shows=("at most 32 items",)),
    *each(31, f"{PODS}.imagePullSecrets", [{"name": f"a{n}"} for n in range(9)],
          shows=("at most 8 items",)),
    *each(31, f"{PODS}.topologySpreadConstraints", [{"topologyKey": f"k{n}"} for n in range(5)],
          shows=("at most 4 items",)),
    *each(31, f"{PODS}.gpuNodes", [{"key": f"k{n}", "operator": "Exists"} for n in range(9)],
          shows=("at most 8 items",)),
    *each(31, f"{PODS}.networkPolicy.clients", [{"podSelector": {"a": f"{n}"}} for n in range(17)],
          shows=("at most 16 items",)),
    *each(31, f"{PODS}.labels", {f"k{n}": "v" for n in range(17)}, shows=("at most 16 items",)),
    *each(31, f"{PODS}.annotations", {f"k{n}": "v" for n in range(17)},
          shows=("at most 16 items",)),
    *each(31, f"{PODS}.annotations", {"a": "x" * 1025}, field=f"{PODS}.annotations.a"),
    *each(31, f"{MODEL}.id", "a/" + "b" * 10_000),
    *each(31, f"{PODS}.memory", "9" * 10_000),
    *each(31, "spec.engine.image", "a" * 10_000),
    *each(40, "spec.hardware.gpusPerReplica", 0, -1, 1.5, 1000, "2"),
    *(
        bad
        for size in ("tensor", "pipeline", "data")
        for bad in each(40, f"spec.hardware.parallelism.{size}", 0, 65, 1.5, "2")
    ),
    *each(40, "spec.hardware.parallelism.expert", 1, "true"),
    *each(40, "spec.hardware.parallelism.context", 2),
    *each(40, "spec.hardware.parallelism", {"tensor": 16, "data": 8},
          shows=("tensor x pipeline x data = 128 must not exceed 64 GPUs",)),
    *each(41, "spec.hardware", {"gpu": "H200", "gpusPerReplica": 2, "parallelism": {"tensor": 4}},
          {"gpu": "H200", "gpusPerReplica": 8,
           "parallelism": {"tensor": 4, "pipeline": 1, "data": 1}},
          shows=("the product tensor x pipeline x data of parallelism", "ones: 4")),
    *each(40, "spec.hardware.gpu", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "", "H200 x2", 8),
    *each(40, "spec.hardware.resourceClaims", [{"name": "gpu"}]),
    *each(40, f"{PODS}.resources", {"limits": {"nvidia.com/gpu": 8}}),
    *each(44, f"{DEMAND}.tokensPerSecond", 10**30, "1e308", "9" * 13, 10**12),
    *each(44, "spec.contextLength", 10**18, 15, 1e308),
    *each(44, f"{DEMAND}.promptTokens.mean", 10**18, 0),
    *each(44, f"{DEMAND}.concurrentUsers", 10**9),
    *each(44, f"{PODS}.memory", "1e308", "0", "-1Gi", "0.5Gi"),
    *each(46, "spec.scaling.mode", "Auto\nERROR forged", "\x1b[31mAuto", "%s{}"),
    *each(46, f"{PODS}.nodeSelector", {"a b": "x"}, {"a\nb": "x"}, shows=("label name",)),
    *each(46, f"{PODS}.labels", {"a b": "x"}, {"a\nb": "x"}, shows=("label name",)),
    *each(46, f"{PODS}.labels", {"a": "x\ny"}, field=f"{PODS}.labels.a"),
    *each(46, f"{PODS}.annotations", {"a b": "x"}, {"a\nb": "x"}, shows=("label name",)),
    *each(46, f"{PODS}.tolerations", [{"key": "a\nb"}], field=f"{PODS}.tolerations.0.key"),
    *each(46, f"{PODS}.tolerations", [{"operator": "Exists", "value": "x"}], [{"value": "x"}],
          field=f"{PODS}.tolerations.0"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BadText:
    """One text that is YAML to somebody, and what each reader makes of it."""

    row: int
    what: str
    text: str
    api_says: str | None
    """None: kubectl takes it, as older YAML does; nothing is amiss with what it reads."""
    parser_says: str

    @property
    def id(self) -> str:
        return f"row-{self.row:02d}-{self.what}"


TEXT = """\
apiVersion: tonnage.dev/v1alpha1
kind: ModelDeployment
metadata: {name: llama}
spec:
  model: {id: meta-llama/Llama-3.3-70B-Instruct}
  hardware: {gpu: H200}
  contextLength: 8192
  scaling: {maxReplicas: 8}
  engine: {version: "0.33"}
"""


def a_text(
    row: int, what: str, change: tuple[str, str], *, api: str | None, parser: str
) -> BadText:
    """Replace one part of the good text."""
    text = TEXT.replace(*change)
    return BadText(row=row, what=what, text=text, api_says=api, parser_says=parser)


def count(text: str, *, api: str | None) -> BadText:
    """Write ``maxReplicas`` so that readers differ."""
    return a_text(
        30, f"maxReplicas-{text}", ("maxReplicas: 8", f"maxReplicas: {text}"),
        api=api, parser="spec.scaling.maxReplicas",
    )  # fmt: skip


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
TEXTS: tuple[BadText, ...] = (
    BadText(
        row=28, what="alias-bomb", text=TEXT + BOMB, api_says="excessive aliasing",
        parser_says="more than 100000 fields",
    ),
    a_text(28, "nesting", ("  engine", f"  x: {'[' * 5000}{']' * 5000}\n  engine"),
           api='unknown field "spec.x"', parser="nested more than"),
    a_text(28, "tab", ("  model", "\tmodel"), api="cannot start any token", parser="a tab"),
    a_text(28, "duplicate-key", ("  contextL", "  contextLength: 9\n  contextL"),
           api=None, parser="is given twice"),
    a_text(28, "python-object", ("maxReplicas: 8", "maxReplicas: !!python/object:os.system 8"),
           api="spec.scaling.maxReplicas", parser="tag"),
    count("on", api="spec.scaling.maxReplicas"),
    count("12:30:45", api="spec.scaling.maxReplicas"),
    count("2026-01-01", api="spec.scaling.maxReplicas"),
    count(".nan", api="NaN"),
    count("012", api=None),
    count("1_0", api=None),
    count("1e2", api=None),
    count("0x10", api=None),
    a_text(30, "version-0.10", ('"0.33"', "0.10"), api="spec.engine.version",
           parser="spec.engine.version"),
    a_text(30, "gpu-no", ("gpu: H200", "gpu: no"), api="spec.hardware.gpu",
           parser="spec.hardware.gpu"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Unservable:
    """A manifest that is in order, and asks for what cannot be: the planner says so."""

    row: int
    what: str
    changes: tuple[Change, ...] = ()
    config: str | None = None
    """The text of a config.json that is given with it."""
    shows: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"row-{self.row:02d}-{self.what}"


GPU, GPUS = "spec.hardware.gpu", "spec.hardware.gpusPerReplica"
SIZES = "spec.hardware.parallelism"
LLAMA_8B = (
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, '
    '"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, '
    '"intermediate_size": 14336, "vocab_size": 128256, "torch_dtype": "bfloat16", '
    '"max_position_embeddings": 131072}'
)


def config(what: str, old: str, new: str, *shows: str) -> Unservable:
    """Give a config.json in which one thing is wrong."""
    return Unservable(row=43, what=what, config=LLAMA_8B.replace(old, new), shows=shows)


UNSERVABLE: tuple[Unservable, ...] = (
    Unservable(row=40, what="unknown-class", changes=((GPU, "H2000"),),
               shows=("hardware.gpu 'H2000'", "H100", "L40S")),
    Unservable(row=40, what="unknown-vendor", changes=((GPU, "MI300X"),), shows=("'MI300X'",)),
    Unservable(row=40, what="slice-of-a-gpu", changes=((GPU, "H100-1g.10gb"),),
               shows=("'H100-1g.10gb'",)),
    Unservable(row=41, what="no-split", changes=(("spec.model.id", "Qwen/Qwen3-8B"), (GPUS, 37)),
               shows=("gpusPerReplica 37", "32 attention heads")),
    Unservable(row=41, what="tensor-does-not-divide",
               changes=((SIZES, {"tensor": 3}), (f"{SIZES}.pipeline", 1)),
               shows=("hardware.parallelism {tensor: 3, pipeline: 1}: TP 3",
                      "64 attention heads")),
    Unservable(row=41, what="tensor-beyond-a-node", changes=((SIZES, {"tensor": 16}),),
               shows=("hardware.parallelism {tensor: 16}", "node of 8 GPUs")),
    Unservable(row=41, what="data-without-experts", changes=((SIZES, {"data": 2}),),
               shows=("hardware.parallelism {data: 2}: DP 2 needs experts",
                      "Llama-3.3-70B-Instruct")),
    Unservable(row=41, what="experts-of-a-dense-model", changes=((SIZES, {"expert": True}),),
               shows=("hardware.parallelism.expert needs a model with experts",)),
    Unservable(row=41, what="slices-of-experts-on-data-parallel-ranks",
               changes=(("spec.model", {"id": "deepseek-ai/DeepSeek-V3"}),
                        (SIZES, {"data": 8, "tensor": 1, "pipeline": 1, "expert": False})),
               shows=("expert: false does not go with DP8",)),
    Unservable(row=41, what="experts-in-two-places",
               changes=(("spec.model", {"id": "Qwen/Qwen3-30B-A3B"}), (SIZES, {"expert": False}),
                        ("spec.engine.args", ["--enable-expert-parallel"])),
               shows=("hardware.parallelism.expert: false contradicts engine.args",)),
    Unservable(row=42, what="weights-exceed-memory",
               changes=((GPUS, 1), ("spec.model.weights", "bfloat16")),
               shows=("128.6 GiB usable", "131.4 GiB weights", "activations", "CUDA graphs",
                      "8192 tokens")),
    Unservable(row=42, what="one-request-exceeds-memory",
               changes=(("spec.contextLength", 131_072), (GPUS, 1), ("spec.hardware.gpu", "H100"),
                        ("spec.model.weights", "int4")),
               shows=("GiB usable", "KV cache", "131072 tokens")),
    Unservable(row=42, what="context-beyond-positions",
               changes=(("spec.contextLength", 1_000_000), (GPUS, 1)),
               shows=("contextLength 1000000", "131072 positions")),
    Unservable(row=42, what="slo-out-of-reach",
               changes=(("spec.slo.timePerOutputToken", {"p95": "1ms"}),),
               shows=("timePerOutputToken", "one request alone", "SLO is 1.00 ms")),
    Unservable(row=42, what="unknown-model", changes=(("spec.model.id", "nobody/nothing"),),
               shows=("'nobody/nothing'", "config.json")),
    config("negative-layers", '"num_hidden_layers": 32', '"num_hidden_layers": -32',
           "num_hidden_layers = -32"),
    config("too-many-heads", '"num_attention_heads": 32', f'"num_attention_heads": {10**18}',
           "num_attention_heads = 1000000000000000000"),
    config("too-many-layers", '"num_hidden_layers": 32', '"num_hidden_layers": 999999999',
           "num_hidden_layers = 999999999"),
    config("heads-that-do-not-divide", '"num_key_value_heads": 8', '"num_key_value_heads": 3',
           "num_key_value_heads = 3", "32"),
    config("missing-key", '"hidden_size": 4096, ', "", "hidden_size is missing"),
    config("string", '"hidden_size": 4096', '"hidden_size": "4096"', "hidden_size = '4096'"),
    config("fraction", '"hidden_size": 4096', '"hidden_size": 1.5', "hidden_size = 1.5"),
    config("not-a-number", '"hidden_size": 4096', '"hidden_size": NaN', "hidden_size = nan"),
    config("unknown-class", 'LlamaForCausalLM"], "model_type": "llama"',
           'Http"], "model_type": "http"', "no class Http", "'http'"),
    config("nesting", LLAMA_8B, "[" * 10_000, "config.json"),
    config("no-json", LLAMA_8B, "\x1b[31m", "config.json"),
    config("no-object", LLAMA_8B, "[]", "config.json is no object"),
)  # fmt: skip
