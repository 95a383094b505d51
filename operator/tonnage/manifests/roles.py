"""The ModelDeployments of both roles, as the spec of the one that asks for them has them."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from tonnage.api.group import KIND
from tonnage.api.hardware import ParallelSizes
from tonnage.api.objects import ModelDeployment
from tonnage.api.pods import Role
from tonnage.api.spec import Percentiles, Spec
from tonnage.manifests.names import (
    API_VERSION,
    DIGEST_ANNOTATION,
    Manifest,
    labels,
    owner_reference,
)
from tonnage.sizing.roles import Divided
from tonnage.sizing.split import Parallelism
from tonnage.units import MS_PER_S, seconds

ROLES: Final[tuple[Role, ...]] = ("prefill", "decode")
DIGEST_LENGTH: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleManifest:
    """A ModelDeployment to apply."""

    role: Role
    manifest: Manifest
    digest: str
    """Of its spec."""

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def spec(self) -> Manifest:
        spec: Manifest = self.manifest["spec"]
        return spec


def role_name(name: str, role: Role) -> str:
    """Return what the ModelDeployment of a role is called."""
    return f"{name}-{role}"


def role_manifests(model: ModelDeployment, divided: Divided) -> tuple[RoleManifest, ...]:
    """Return the ModelDeployments of both roles of an object with a topology."""
    return tuple(_role_manifest(model, role, divided) for role in ROLES)


def _role_manifest(model: ModelDeployment, role: Role, divided: Divided) -> RoleManifest:
    spec = role_spec(model.spec, role, divided)
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:DIGEST_LENGTH]
    name = role_name(model.name, role)
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": model.namespace,
            "labels": labels(name),
            "annotations": {DIGEST_ANNOTATION: digest},
            "ownerReferences": [owner_reference(name=model.name, uid=model.uid)],
        },
        "spec": spec,
    }
    return RoleManifest(role=role, manifest=manifest, digest=digest)


def role_spec(spec: Spec, role: Role, divided: Divided) -> dict[str, Any]:
    """Return the spec of one role: what both share, its split, its bounds, its part of the SLO."""
    sizing = divided.prefill if role == "prefill" else divided.decode
    own = spec.to_dict()
    topology = spec.topology
    del own["topology"]
    options = topology.options_of(role).to_dict() if topology else {}
    own["hardware"] = {
        "gpu": spec.hardware.gpu,
        "parallelism": _sizes(sizing.parallelism, sizing.request.sizes),
    }
    own["engine"] |= {"role": role}
    own["scaling"] |= {
        key: options[key] for key in ("minReplicas", "maxReplicas") if key in options
    }
    first = spec.slo.time_to_first_token if spec.slo else None
    if first is not None:
        own["slo"]["timeToFirstToken"] = _part(first, role, divided.decode_s)
    if role == "prefill":
        own["slo"].pop("timePerOutputToken", None)
    else:
        own["demand"]["cacheTransfer"] = _ms(divided.transfer_s)
    return own


def _sizes(split: Parallelism, given: ParallelSizes) -> dict[str, Any]:
    expert = {} if given.expert is None else {"expert": given.expert}
    return {"tensor": split.tensor, "data": split.data, **expert}


def _part(whole: Percentiles, role: Role, decode_s: float) -> dict[str, str]:
    """Return the part of each limit of TTFT that a role may take."""
    limits = {key: seconds(limit) for key, limit in whole.to_dict().items()}
    if role == "decode":
        return dict.fromkeys(limits, _ms(decode_s))
    return {key: _ms(limit_s - decode_s) for key, limit_s in limits.items()}


def _ms(duration_s: float) -> str:
    return f"{round(duration_s * MS_PER_S)}ms"
