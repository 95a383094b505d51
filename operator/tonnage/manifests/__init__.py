"""A decision as Kubernetes manifests. Pure: values in, dicts out."""
