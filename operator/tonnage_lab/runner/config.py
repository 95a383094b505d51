"""What the runner is told: its nodes, and which local program stands for which image."""

import re
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeConfig(_Frozen):
    """One node to register."""

    name: str
    labels: dict[str, str] = {}
    gpus: int = Field(default=0, ge=0)
    cpu: str = "64"
    memory: str = "512Gi"
    pods: int = Field(default=110, ge=1)


class ImageConfig(_Frozen):
    """What runs for the images whose whole name matches a pattern."""

    image: str
    """A regular expression."""
    command: list[str] = Field(min_length=1)
    """In place of the image's entrypoint; the container's args follow."""
    programs: dict[str, list[str]] = {}
    """Programs of the image that a container's own command may name, and what runs instead."""
    environment: dict[str, str] = {}
    """In place of the image's own environment; the container's env goes over it."""
    probe_period_scale: float = Field(default=1.0, gt=0)
    """Multiplies periods and initial delays of its containers' probes: 0.1 makes 10 s 1 s."""


def _fit_for_mount_options(path: Path) -> Path:
    if not re.fullmatch(r"/[^:,\\\s]*", str(path)):
        raise ValueError(f"{path} must be absolute, without colon, comma, backslash or space")
    return path


class RunnerConfig(_Frozen):
    """The whole file."""

    state_directory: Annotated[Path, AfterValidator(_fit_for_mount_options)]
    """Volumes, claims and logs; logs are under logs/NAMESPACE/POD/CONTAINER.log."""
    nodes: list[NodeConfig] = Field(min_length=1)
    images: list[ImageConfig] = []
    restart_delay_scale: float = Field(default=1.0, gt=0)
    """Multiplies the waits between restarts of a crashing container."""
    pre_stop_limit_s: float | None = Field(default=None, ge=0)
    """A preStop hook is cut off after this; None: only by the pod's grace period."""

    def image_for(self, name: str) -> ImageConfig | None:
        """Return the first entry whose pattern matches the whole image name."""
        return next((each for each in self.images if re.fullmatch(each.image, name)), None)


def load(path: Path) -> RunnerConfig:
    """Read the file.

    Raises:
        pydantic.ValidationError: it says something else than the fields above.
    """
    return RunnerConfig.model_validate(yaml.safe_load(path.read_text()))
