"""All I/O of the operator: Kubernetes, Prometheus and the clock."""
