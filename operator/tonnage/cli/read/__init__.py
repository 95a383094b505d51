"""What the command line reads: manifests, checkpoints, the hub, a cluster."""
