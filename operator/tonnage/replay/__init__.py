"""Replaying traffic against a model of a cluster: what the operator runs, without one."""
