"""What a spec refers to, from the files beside it: a config.json, and a Deployment to scale."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tonnage.api.objects import ModelDeployment
from tonnage.api.spec import Model
from tonnage.api.strict_json import read_json
from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.catalog.models import MAX_CONFIG_BYTES, with_second_file
from tonnage.catalog.safetensors import Checkpoint
from tonnage.cli.console import Failure, ManifestError, failing, remark
from tonnage.cli.read.manifest import ManifestObject, Manifests, block, parse, read_text
from tonnage.manifests.names import WORKLOADS
from tonnage.manifests.target import TargetEngine, target_engine

CONFIG_NAME: Final = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedModel:
    """A ModelDeployment of some files: its spec, its place in them, and the manifests beside it."""

    model: ModelDeployment
    resource: ManifestObject
    manifests: Manifests


def parsed_model(resource: ManifestObject, manifests: Manifests) -> ParsedModel:
    """Read a ModelDeployment as the API server would.

    Raises:
        ManifestError: with the file, the line, the field and what is wrong with it.
    """
    return ParsedModel(model=parse(resource), resource=resource, manifests=manifests)


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """What a spec refers to, and what is known of its model beside it."""

    config: str | None = None
    """The text of its config.json."""
    target: TargetEngine | None = None
    """Of the workload that it scales; its flags stay as they are."""
    checkpoint: Checkpoint | None = None
    """What the files of its model hold; without it weights are counted."""
    asks_hub: bool = False
    """For what is not given."""

    def of(self, parsed: ParsedModel) -> "References":
        """Return what a spec refers to: as given, else in the same files, else on the hub.

        Raises:
            ManifestError: something is not in these files, or cannot be read.
        """
        return replace(
            self,
            config=self._config(parsed),
            target=target_of(parsed),
            checkpoint=self._checkpoint(parsed.model.spec.model),
        )

    def _config(self, parsed: ParsedModel) -> str | None:
        config = self.config or config_of(parsed)
        if config is None and self.asks_hub:
            from tonnage.cli.read.hub import config_from_hub  # noqa: PLC0415  (slow)

            model = parsed.model.spec.model
            return config_from_hub(model.id, model.revision)
        return config

    def _checkpoint(self, model: Model) -> Checkpoint | None:
        """Return the checkpoint that was given, else the one that the hub has, if it has one."""
        if self.checkpoint is not None or not self.asks_hub:
            return self.checkpoint
        from tonnage.cli.read.hub import checkpoint_from_hub  # noqa: PLC0415  (slow)

        try:
            return checkpoint_from_hub(model.id, model.revision)
        except Failure as failure:
            remark(
                f"Note: {failure.message}; the weights of {model.id} are counted from config.json"
            )
            return None


def checked_text(config_file: str, *, option: str) -> str:
    """Return a config.json, given itself or by its folder, with the quantization of a file beside.

    Raises:
        ManifestError: it cannot be read, or is none.
    """
    path = Path(config_file)
    if path.is_dir():
        path /= CONFIG_NAME
    with failing(ManifestError, where=f"{option} "):
        text = read_text(str(path), max_bytes=MAX_CONFIG_BYTES)
        check_json(text, source=str(path))
        return _with_second_file(text, lambda name: _beside(path, name), source=str(path))


def _beside(path: Path, name: str) -> str | None:
    other = path.with_name(name)
    is_read = path.name == CONFIG_NAME and other.is_file()
    return read_text(str(other), max_bytes=MAX_CONFIG_BYTES) if is_read else None


def _with_second_file(text: str, beside: Callable[[str], object], *, source: str) -> str:
    with failing(ModelConfigError, where=f"{source}: "):
        return with_second_file(
            text, lambda name: found if isinstance(found := beside(name), str) else None
        )


def check_json(text: str, *, source: str) -> None:
    """Refuse what JSON readers take in silence or in different ways.

    Raises:
        ManifestError: no JSON object, or a key that is given twice.
    """
    try:
        content = read_json(text, is_finite=False)
    except json.JSONDecodeError as error:
        raise ManifestError(f"{source}:{error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise ManifestError(f"{source}: {error}") from error
    if not isinstance(content, dict):
        raise ManifestError(f"{source}: not a JSON object")


def config_of(parsed: ParsedModel) -> str | None:
    """Return the config.json that the spec refers to, from a ConfigMap in the same files."""
    resource, namespace = parsed.resource, parsed.model.namespace
    config = parsed.model.spec.model.config
    if config is None:
        return None
    reference = config.config_map_key_ref
    where = f"{resource.source}:{resource.line_of('spec.model.config')}: spec.model.config"
    config_map = parsed.manifests.config_maps.get(("ConfigMap", namespace, reference.name))
    if config_map is None:
        raise ManifestError(
            f"{where}: ConfigMap {namespace}/{reference.name} is not in these files; "
            "add its file with -f, or give the config.json with --model-config"
        )
    data = block(config_map.content, "data")
    text = data.get(reference.key)
    if not isinstance(text, str):
        raise ManifestError(f"{where}: {config_map.location}: ConfigMap has no key {reference.key}")
    source = f"{config_map.location}: {reference.key}"
    check_json(text, source=source)
    return _with_second_file(text, data.get, source=source)


def target_of(parsed: ParsedModel) -> TargetEngine | None:
    """Return the workload that the spec scales, from the same files."""
    resource, namespace = parsed.resource, parsed.model.namespace
    target = parsed.model.spec.scale_target
    if target is None:
        return None
    found = parsed.manifests.deployments.get((target.kind, namespace, target.name))
    if found is None:
        location = f"{resource.source}:{resource.line_of('spec.scaleTarget')}"
        raise ManifestError(
            f"{location}: spec.scaleTarget: {target.kind} {namespace}/{target.name} is "
            "not in these files; engine version and flags are read from it, so add its manifest "
            "with -f"
        )
    return engine_of(found, parsed)


def engine_of(workload: ManifestObject, parsed: ParsedModel) -> TargetEngine:
    """Read the engine of a workload; ConfigMaps that it refers to may be in the same files."""
    kind = WORKLOADS[workload.kind]
    template = block(workload.content, "spec", kind.template)
    maps = {
        name: block(each.content, "data")
        for (_, namespace, name), each in parsed.manifests.config_maps.items()
        if namespace == parsed.model.namespace
    }
    size = template.get("size", 1)
    return target_engine(
        block(next(kind.templates(template)), "spec"),
        size=size if isinstance(size, int) else 1,
        config_maps=maps,
    )
