"""A scale target from a file: what the workload says about the engine that runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tonnage.catalog.engine import parse_version
from tonnage.catalog.gpu import CatalogError
from tonnage.cli.read.manifest import ManifestObject
from tonnage.cli.read.nested import block
from tonnage.manifests.arguments import FLAGS_NEEDED, read_flags
from tonnage.manifests.workload import WORKLOADS
from tonnage.sizing.request import Flags


class TargetError(Exception):
    """The workload does not say what a plan for it needs; ``code`` is a condition's reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetContainer:
    """The engine container of a workload."""

    name: str
    image: str
    arguments: tuple[str, ...]

    @property
    def engine_version(self) -> str:
        """Return the version in the tag of the image.

        Raises:
            TargetError: the tag is no version, so flags and memory constants are unknown.
        """
        tag = self.image.rpartition(":")[2]
        try:
            major, minor = parse_version(tag)
        except CatalogError as error:
            raise TargetError(
                "EngineVersionUnknown",
                f"scaleTarget {self.name}: image tag {tag[:80]!r} is no version",
            ) from error
        return f"{major}.{minor}"

    def flags(self, *, default_utilization: float) -> Flags:
        """Return the flags that decide capacity, as they run.

        Raises:
            TargetError: one that must be known is absent, or cannot be read.
        """
        flags = read_flags(self.arguments, default_utilization=default_utilization)
        if flags is None:
            raise TargetError(
                "FlagsUnknown",
                f"scaleTarget {self.name} {FLAGS_NEEDED}",
            )
        return flags


def scale_target(deployment: ManifestObject) -> TargetContainer:
    """Read a workload from a file; the first container of who answers is the engine."""
    workload = WORKLOADS[deployment.kind]
    template = block(deployment.content, "spec", workload.template)
    containers = block(next(workload.templates(template)), "spec").get("containers")
    first = containers[0] if isinstance(containers, list) and containers else {}
    container: Mapping[str, Any] = first if isinstance(first, Mapping) else {}
    words = [*_words(container, "command"), *_words(container, "args")]
    return TargetContainer(
        name=deployment.name, image=str(container.get("image", "")), arguments=tuple(words)
    )


def _words(container: Mapping[str, Any], key: str) -> list[str]:
    words = container.get(key)
    return [str(word) for word in words] if isinstance(words, list) else []
