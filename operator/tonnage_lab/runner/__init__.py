"""The pod runner: nodes whose pods are processes on this machine.

It does a kubelet's work with the kernel's own parts: a network namespace with an address for
each pod, a private mount namespace over a copy-on-write view of this machine's files for each
container, the pod's own probes, and its status reported to the API server. Images are not
pulled: a table names the local program for each.

Left out on purpose: init containers, resource limits, security contexts (everything runs as the
runner's user), logs and exec through the API server, live updates of mounted ConfigMaps.
"""
