"""GPUs that a pod asks for: those that are counted, and those that cannot be."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

Object = Mapping[str, Any]

COUNTED: Final = "nvidia.com/gpu"
OTHER_MARKS: Final = ("gpu", "/mig-", "amd.com/", "/tpu", "/neuron", "/gaudi", "/npu", "/ascend")
"""What the names of other resources of accelerators contain, in lower case.

Slices of NVIDIA GPUs (mig-1g.10gb, gpu.shared, gpumem), GPUs of AMD and Intel, and what is none
but takes the place of one.
"""


def num_gpus(pod_spec: Object) -> int:
    """Return the GPUs of all containers of a pod; init containers run before them, one by one.

    >>> num_gpus({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}, {}]})
    2
    """
    running = sum(_amount(limits) for limits in _limits(pod_spec, "containers"))
    return max([running, *(_amount(limits) for limits in _limits(pod_spec, "initContainers"))])


def uncounted_gpus(pod_spec: Object) -> tuple[str, ...]:
    """Return what a pod takes GPUs by that is not counted, by name.

    >>> uncounted_gpus({"containers": [{"resources": {"limits": {"amd.com/gpu": "1"}}}]})
    ('amd.com/gpu',)
    """
    kinds = ("containers", "initContainers")
    each = (limits for kind in kinds for limits in _limits(pod_spec, kind))
    names = {name for limits in each for name in _unclear(limits)}
    claims = pod_spec.get("resourceClaims") or ()
    return tuple(sorted(names | {f"resourceClaim {claim.get('name', '')}" for claim in claims}))


def _limits(pod_spec: Object, kind: str) -> Iterator[Object]:
    for container in pod_spec.get(kind) or ():
        yield (container.get("resources") or {}).get("limits") or {}


def _amount(limits: Object) -> int:
    amount = str(limits.get(COUNTED, "0"))
    return int(amount) if amount.isdecimal() else 0


def _unclear(limits: Object) -> Iterator[str]:
    """Yield resources that are GPUs by their name, and amounts that are no plain number."""
    for name, amount in limits.items():
        if name == COUNTED:
            if not str(amount).isdecimal():
                yield f"{name} {amount}"
        elif "/" in name and any(mark in name.lower() for mark in OTHER_MARKS):
            yield name
