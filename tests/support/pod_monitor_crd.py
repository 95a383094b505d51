"""The CRD of PodMonitors, as far as Tonnage writes them."""

POD_MONITOR_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "selector": {
                                        "type": "object",
                                        "x-kubernetes-map-type": "atomic",
                                        "x-kubernetes-preserve-unknown-fields": True,
                                    },
                                    "podTargetLabels": {
                                        "type": "array",
                                        "items": {"type": "string"},
                                    },
                                    "sampleLimit": {"type": "integer"},
                                    "labelLimit": {"type": "integer"},
                                    "podMetricsEndpoints": {
                                        "type": "array",
                                        "items": {
                                            "type": "object",
                                            "x-kubernetes-preserve-unknown-fields": True,
                                        },
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}
"""The part that is written here: lists are atomic in the Prometheus operator's own too."""
