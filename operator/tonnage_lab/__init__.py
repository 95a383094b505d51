"""A cluster on this machine: real control plane, nodes, pods that answer, and the demo on it."""
