"""Both roles of an object with a topology: how it is divided, and the two objects that they are."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from tonnage.api.base import KIND
from tonnage.api.hardware import ROLES, ParallelSizes, Role, Topology
from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import Percentiles, Spec
from tonnage.manifests.names import (
    API_VERSION,
    DIGEST_ANNOTATION,
    Manifest,
    labels,
    owner_reference,
)
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import ANY_SIZES, DIGEST_LENGTH, SizingRequest, digest_of
from tonnage.sizing.roles import Divided, divide
from tonnage.units import MS_PER_S, seconds

_DIGEST: Final = re.compile(f"[0-9a-f]{{{DIGEST_LENGTH}}} ([1-9][0-9]?)x([1-9][0-9]?) [0-9]+")
Size = Callable[[SizingRequest], Sizing]


RunningRole = tuple[Spec, ParallelSizes]
"""Of a role that is there: its spec, and its split as it was planned."""
Running = Mapping[Role, RunningRole]


def divided_spec(
    spec: Spec, topology: Topology, request: SizingRequest, size: Size, running: Running
) -> Divided:
    """Divide a spec; the splits that run stay where they still serve it.

    ``request``: of the whole; ``running``: the roles that there are.

    Raises:
        SizingError: no roles keep the SLO.
        SearchAbandonedError: as ``size`` does.
    """
    link = topology.kv_link_bytes_per_s or request.other_node_bytes_per_s
    given = {
        role: topology.options_of(role).parallelism or spec.hardware.parallelism or ANY_SIZES
        for role in ROLES
    }

    def of_role(role: Role, sizes: ParallelSizes) -> SizingRequest:
        options = topology.options_of(role)
        return replace(
            request,
            sizes=sizes,
            num_gpus=None if options.parallelism else request.num_gpus,
            min_replicas=options.min_replicas or request.min_replicas,
            max_replicas=options.max_replicas or request.max_replicas,
        )

    def sized(sizes: Mapping[Role, ParallelSizes]) -> Divided:
        prefill, decode = (of_role(role, sizes[role]) for role in ROLES)
        return divide(prefill, decode, link, size)

    limited = {  # the splits that run, of the same model and GPUs, where the spec lets them stay
        role: sizes.model_copy(update={"expert": given[role].expert})
        for role, (own, sizes) in running.items()
        if (own.model, own.hardware.gpu) == (spec.model, spec.hardware.gpu)
        and given[role].tensor in {None, sizes.tensor}
        and given[role].data in {None, sizes.data}
    }
    if limited:
        with suppress(SizingError):
            return sized(given | limited)
    return sized(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleManifest:
    """A ModelDeployment to apply."""

    role: Role
    manifest: Manifest
    digest: str
    """Of its spec; the split that was planned, and the generation of the spec it was made from."""

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


def sizes_written(digest: str | None) -> ParallelSizes | None:
    """Return the split that a role was planned with; None: Tonnage did not write it.

    >>> sizes_written("0123456789ab 4x1 7")
    ParallelSizes(tensor=4, pipeline=None, data=1, expert=None)
    """
    found = _DIGEST.fullmatch(digest or "")
    return ParallelSizes(tensor=int(found[1]), data=int(found[2])) if found else None


def is_written_for(digest: str | None, generation: int) -> bool:
    """Tell whether a role was made from this generation of the spec."""
    return (digest or "").rpartition(" ")[2] == str(generation)


def role_name(name: str, role: Role) -> str:
    return f"{name}-{role}"


def role_manifests(model: ModelDeployment, divided: Divided) -> tuple[RoleManifest, ...]:
    return tuple(_role_manifest(model, role, divided) for role in ROLES)


def role_models(model: ModelDeployment, divided: Divided) -> tuple[ModelDeployment, ...]:
    """Return the same as values."""
    return tuple(
        replace(
            model,
            name=role_name(model.name, role),
            spec=Spec.model_validate_json(json.dumps(_role_spec(model.spec, role, divided))),
        )
        for role in ROLES
    )


def _role_manifest(model: ModelDeployment, role: Role, divided: Divided) -> RoleManifest:
    spec = _role_spec(model.spec, role, divided)
    text, sizes = json.dumps(spec, sort_keys=True), spec["hardware"]["parallelism"]
    digest = f"{digest_of((text,))} {sizes['tensor']}x{sizes['data']} {model.generation}"
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


def _role_spec(spec: Spec, role: Role, divided: Divided) -> dict[str, Any]:
    """Return the spec of one role: what both share, its split, its bounds, its part of the SLO."""
    sizing = divided.prefill if role == "prefill" else divided.decode
    own = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
    topology = spec.topology
    del own["topology"]
    options = topology.options_of(role).to_dict() if topology else {}
    own["hardware"] = {
        "gpu": spec.hardware.gpu,
        "parallelism": {"tensor": sizing.parallelism.tensor, "data": sizing.parallelism.data},
    }
    if sizing.request.sizes.expert is not None:
        own["hardware"]["parallelism"]["expert"] = sizing.request.sizes.expert
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


def _part(whole: Percentiles, role: Role, decode_s: float) -> dict[str, str]:
    """Return the part of each limit of TTFT that a role may take."""
    limits = {key: seconds(limit) for key, limit in whole.to_dict().items()}
    if role == "decode":
        return dict.fromkeys(limits, _ms(decode_s))
    return {key: _ms(limit_s - decode_s) for key, limit_s in limits.items()}


def _ms(duration_s: float) -> str:
    return f"{round(duration_s * MS_PER_S)}ms"
