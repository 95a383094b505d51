"""Every field of ``spec.pods`` at once."""

STORE = {"name": "store", "key": "id"}
EVERY_POD_FIELD = {
    "nodeSelector": {"pool": "inference"},
    "tolerations": [{"key": "team", "value": "chat", "effect": "NoSchedule"}],
    "modelCacheClaim": "weights",
    "compileCache": "Pod",
    "huggingFaceTokenSecret": {"name": "hugging-face"},
    "cpu": "8",
    "cpuLimit": "16",
    "memory": "64Gi",
    "memoryLimit": "96Gi",
    "ephemeralStorage": "20Gi",
    "ephemeralStorageLimit": "40Gi",
    "priorityClassName": "serving",
    "runtimeClassName": "nvidia",
    "gpuNodes": [
        {"key": "cloud.google.com/gke-accelerator", "values": ["nvidia-h200-141gb"]},
        {"key": "cloud.google.com/gke-spot", "operator": "DoesNotExist"},
    ],
    "topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone"}],
    "serviceAccountName": "model-reader",
    "imagePullSecrets": [{"name": "mirror"}],
    "env": [{"name": "AWS_ACCESS_KEY_ID", "secretKeyRef": STORE}],
    "apiKeySecret": {"name": "clients", "key": "api-key"},
    "user": {"id": 1_000_680_000, "group": 0},
    "fsGroupChangePolicy": "OnRootMismatch",
    "labels": {"inference-pool": "chat"},
    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    "maxSurge": 0,
    "disruptionBudget": {"maxUnavailable": 1},
    "networkPolicy": {"clients": [{"podSelector": {"app": "gateway"}}], "egressPorts": [443]},
}
