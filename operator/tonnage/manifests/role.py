"""What makes an engine hand over the KV cache of prompts, or take it: vLLM's NixlConnector.

Which engine reads a prompt and which makes the answer a proxy in front says with each request, as
vLLM has one. llm-d's router asks for a sidecar in the pods, which have one container.
"""

import json
from collections.abc import Iterator
from typing import Final

from tonnage.api.spec import Spec
from tonnage.manifests.names import Manifest, field_of_pod

CONNECTOR: Final = "NixlConnector"
KV_ROLES: Final = {"prefill": "kv_producer", "decode": "kv_consumer"}


def role_arguments(spec: Spec) -> Iterator[str]:
    """Yield the flags.

    A cache that cannot be taken is computed anew: ``fail``, which is the default since 0.17, would
    end each request whose prefill replica is gone, and all of them while one role has rolled and
    the other has not.

    Sources:
        [vllm-source] config/kv_transfer.py.
        [vllm-nixl-usage]
    """
    if role := spec.role:
        config = {
            "kv_connector": CONNECTOR,
            "kv_role": KV_ROLES[role],
            "kv_load_failure_policy": "recompute",
        }
        yield from ("--kv-transfer-config", json.dumps(config, separators=(",", ":")))


def role_environment(spec: Spec) -> list[Manifest]:
    """Return the variables: where the other role's engines find this one.

    Sources:
        [vllm-nixl-usage] VLLM_NIXL_SIDE_CHANNEL_HOST; its port is 5600 and more, by data-parallel
        rank, on each pod's own address.
    """
    if spec.role is None:
        return []
    address = {"fieldRef": field_of_pod("status.podIP")}
    return [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": address}]
