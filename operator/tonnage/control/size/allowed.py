"""Whether a spec may have its images, template and account, or two roles in its place. Pure."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from tonnage.api.hardware import Role
from tonnage.api.objects import ModelDeployment
from tonnage.api.pod_template import containers_in, given_template
from tonnage.api.pods import EngineSpec, Pods
from tonnage.api.status import Reason
from tonnage.control.input.sizing_cache import SizingCache
from tonnage.control.input.state import Assessment, DisaggregatedPlan, Fleet, ModelState
from tonnage.control.learn.believed import asked_with, belief
from tonnage.control.size.question import by_spec
from tonnage.manifests.names import CONTAINER
from tonnage.manifests.pod import default_image
from tonnage.manifests.roles import (
    RunningRole,
    divided_spec,
    role_manifests,
    role_name,
    sizes_written,
)
from tonnage.manifests.target import RefusedError
from tonnage.settings import Settings
from tonnage.sizing.errors import SLOInfeasibleError
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import SizingRequest

DEFAULT_REGISTRY: Final = "docker.io"
"""Of a name without a registry, for the kubelet too."""
_ALIASES: Final = frozenset({f"index.{DEFAULT_REGISTRY}", f"registry-1.{DEFAULT_REGISTRY}"})
DEFAULT_ACCOUNT: Final = "default"
"""Of a pod that names none."""
_OFFICIAL: Final = "library"
"""Where the default registry has names of one part."""
ANSWERS: Final = 512
"""About images that are remembered: each object asks again in each tick."""


def check_allowed(model: ModelDeployment, settings: Settings) -> None:
    """Refuse a template that breaks a rule, and what of a spec the settings do not list.

    Raises:
        RefusedError: the message names the field and the setting.
    """
    if model.problem:
        raise RefusedError("InvalidSpec", model.problem)
    spec = model.spec
    if spec.engine is None:
        return
    image, listed = spec.engine.image or default_image(spec), settings.engine_images
    if not is_allowed(image, listed):
        field = "engine.image" if spec.engine.image else "engine.version asks for the image"
        raise _unlisted("ImageNotAllowed", f"{field} {image}", "engineImages", listed)
    _check_code(spec.engine, spec.pods, settings)
    template, listed = given_template(spec.pods), settings.sidecar_images
    for path, container in containers_in(template):
        if container["name"] != CONTAINER and not is_allowed(container["image"], listed):
            what = f"pods.template.{path}.image {container['image']}"
            raise _unlisted("ImageNotAllowed", what, "sidecarImages", listed)
    account = (template.get("spec") or {}).get("serviceAccountName") or DEFAULT_ACCOUNT
    if account not in {DEFAULT_ACCOUNT, *settings.service_account_names}:
        what, listed = f"serviceAccountName of pods {account}", settings.service_account_names
        raise _unlisted("ServiceAccountNotAllowed", what, "serviceAccountNames", listed)


def _check_code(engine: EngineSpec, pods: Pods | None, settings: Settings) -> None:
    """Refuse what runs code of others in the engine, unless a setting allows it."""
    if pods and (pods.template is not None or pods.env) and not settings.pod_templates:
        field = "env" if pods.template is None else "template"
        raise RefusedError(
            "TemplateNotAllowed", f"pods.{field}: the operator's settings.podTemplates is false"
        )
    flags = {argument.partition("=")[0] for argument in engine.args}
    if "--trust-remote-code" in flags and not settings.trust_remote_code:
        raise RefusedError(
            "RemoteCodeNotAllowed",
            "engine.args --trust-remote-code: the operator's settings.trustRemoteCode is false",
        )


def _unlisted(reason: str, what: str, setting: str, listed: tuple[str, ...]) -> RefusedError:
    message = f"{what}: the operator's settings.{setting} allows {', '.join(listed) or 'none'}"
    return RefusedError(reason, message)


@lru_cache(maxsize=ANSWERS)
def is_allowed(image: str, prefixes: tuple[str, ...]) -> bool:
    """Tell whether an image is of one of these repositories, or below one in its path.

    >>> is_allowed("registry.test:5000/ml/vllm:v0.33.0", ("registry.test:5000/ml",))
    True
    >>> is_allowed("vllm/vllm-openai-mine:v0.33.0", ("vllm/vllm-openai",))
    False
    """
    # Without digest and tag; a colon before a slash is of a port.
    folder, slash, last = image.partition("@")[0].rpartition("/")
    repository = _with_registry(f"{folder}{slash}{last.partition(':')[0]}")
    allowed = (name for each in prefixes for name in _listed(each))
    return any(f"{repository}/".startswith(f"{each}/") for each in allowed)


def _listed(prefix: str) -> tuple[str, ...]:
    """Return what a setting names: of one part, a folder and an official image."""
    if _is_registry(prefix):
        return (prefix,)
    return _with_registry(prefix, ""), _with_registry(prefix)


def _with_registry(name: str, official: str = f"{_OFFICIAL}/") -> str:
    """Return a name with its registry, as the kubelet reads it."""
    first, slash, rest = name.partition("/")
    if not slash:
        return f"{DEFAULT_REGISTRY}/{official}{name}"
    if not _is_registry(first):
        return f"{DEFAULT_REGISTRY}/{name}"
    if first not in {DEFAULT_REGISTRY, *_ALIASES}:
        return name
    return f"{DEFAULT_REGISTRY}/{rest}" if "/" in rest else f"{DEFAULT_REGISTRY}/{official}{rest}"


def _is_registry(part: str) -> bool:
    """Tell whether the first part of a name is a registry, and no folder of the default one."""
    is_named = "." in part or ":" in part or part == "localhost"
    return is_named and "/" not in part


def apart(found: Assessment, fleet: Fleet, asker: SizingCache) -> DisaggregatedPlan | None:
    """Return both roles as they should be; None: one fleet serves the object.

    Roles are sized as objects of their own are before they are measured.

    Raises:
        CatalogError, SizingError: nothing can be planned; the message says why.
        RefusedError: something of another has the name of a role, or is not allowed.
        SearchAbandonedError: the time for searches is spent before there is an answer.
    """
    state, model, shape = found.state, found.state.model, found.state.model_config
    if not isinstance(model, ModelDeployment) or model.spec.topology is None:
        return None
    if isinstance(shape, Reason):
        return None  # refused as any object is
    request = by_spec(model.spec, fleet.gpus, shape, None, False)
    constants = belief(request, None, found, fleet)

    def size(asked: SizingRequest) -> Sizing:
        try:
            return asker.size(asked_with(asked, constants, constants.asked.slow))
        except SLOInfeasibleError:
            return asker.size(asked_with(asked, constants, constants.asked.middle))

    divided = divided_spec(model.spec, model.spec.topology, request, size, dict(_running(state)))
    check_allowed(model, fleet.settings)
    _check_names(state, model)
    return DisaggregatedPlan(
        manifests=role_manifests(model, divided), message=f"two roles: {divided}"
    )


def _running(state: ModelState) -> Iterator[tuple[Role, RunningRole]]:
    for role, other in state.own_roles.items():
        sizes = sizes_written(other.view.digest)
        if isinstance(other.model, ModelDeployment) and sizes:
            yield role, (other.model.spec, sizes)


def _check_names(state: ModelState, model: ModelDeployment) -> None:
    """Refuse roles where something else has the name of one, or of the object itself.

    Raises:
        RefusedError: the message names it.
    """
    if state.deployment is not None:
        raise RefusedError(
            "NameConflict",
            f"{state.deployment.kind} {model.name} of this ModelDeployment serves both roles, and "
            "would run beside the two roles: delete it",
        )
    for role in state.roles.keys() - state.own_roles.keys():
        raise RefusedError(
            "NameConflict",
            f"ModelDeployment {role_name(model.name, role)} exists and is not controlled by "
            f"{model.name}: delete or rename one of them",
        )
