"""Where one pod runs: its network, folders and devices, and what its containers are given."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

import tonnage
from tonnage_lab.runner.api import Api
from tonnage_lab.runner.config import ImageConfig, RunnerConfig
from tonnage_lab.runner.environment import NotStartableError, PodFacts, command_line, environment
from tonnage_lab.runner.mounts import Bind, script, shown_again
from tonnage_lab.runner.names import resolver_configuration
from tonnage_lab.runner.network import AddressBlock, PodNetwork
from tonnage_lab.runner.process import Launch, program
from tonnage_lab.runner.source import ObjectSource
from tonnage_lab.runner.volumes import VolumeFolders, binds

Json = Mapping[str, Any]

CLUSTER_API: Final = ("10.96.0.1", "443")
"""Where pods of a real cluster find the API server; from a pod's network it leads nowhere here."""
GPU: Final = "nvidia.com/gpu"
PROGRAM_FOLDERS: Final = tuple(
    sorted({sys.prefix, sys.base_prefix, str(Path(tonnage.__file__).parents[1])})
)
"""What the local programs are run from: the interpreter, its packages, and this one's source."""


@dataclass(slots=True, kw_only=True)
class Devices:
    """The GPUs of one node, by number."""

    free: list[int]

    def take(self, num_gpus: int) -> list[int]:
        """Take so many, lowest first; the scheduler has seen to it that there are enough."""
        self.free.sort()
        taken, self.free = self.free[:num_gpus], self.free[num_gpus:]
        return taken

    def give_back(self, taken: list[int]) -> None:
        self.free += taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What all pods of a runner share."""

    api: Api
    config: RunnerConfig
    block: AddressBlock
    session: aiohttp.ClientSession
    """For probes."""
    lower: tuple[str, ...]
    """Folders of this machine that containers see through overlays of their own."""
    api_address: tuple[str, str]
    """Host and port of the API server, as seen from this machine."""
    devices: Mapping[str, Devices]
    """By node."""
    base_environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """One pod's."""

    pod: Json
    runtime: Runtime
    network: PodNetwork | None
    facts: PodFacts
    source: ObjectSource
    gpus: Mapping[str, list[int]] = field(default_factory=dict)
    """By container."""

    @property
    def folder(self) -> Path:
        """Return the pod's own folder, which goes with it."""
        return self.runtime.config.state_directory / "pods" / str(self.pod["metadata"]["uid"])

    @property
    def folders(self) -> VolumeFolders:
        namespace = self.pod["metadata"]["namespace"]
        claims = self.runtime.config.state_directory / "claims" / namespace
        return VolumeFolders(pod=self.folder / "volumes", claims=claims)

    @property
    def probe_host(self) -> str:
        """A pod in this machine's network may listen on loopback only."""
        return "127.0.0.1" if self.network is None else self.network.pod_ip

    def log(self, container: str) -> Path:
        metadata = self.pod["metadata"]
        logs = self.runtime.config.state_directory / "logs"
        return logs / str(metadata["namespace"]) / str(metadata["name"]) / f"{container}.log"

    async def launch(self, container: Json, image: ImageConfig) -> Launch:
        """Return how to start a container, with its environment as it is now.

        Raises:
            NotStartableError: something that it needs is missing.
        """
        objects = await self.source.objects([container], ())
        base = {**self._base_environment(container), **image.environment}
        variables = environment(container, self.facts, objects, base)
        return Launch(
            argv=command_line(
                container, variables, entrypoint=image.command, programs=image.programs
            ),
            folder=container.get("workingDir") or "/",
            environment=variables,
            script=self._write_script(container),
            log=self.log(container["name"]),
            network=self.network,
        )

    def _write_script(self, container: Json) -> Path:
        scratch = self.folder / "containers" / str(container["name"])
        scratch.mkdir(parents=True, exist_ok=True)
        path = scratch.with_suffix(".sh")
        volumes = binds(container, self.pod["spec"].get("volumes") or [], self.folders)
        if self.network is not None:
            volumes.append(self._resolver())
        path.write_text(
            script(
                scratch=str(scratch),
                binds=[*volumes, *shown_again(volumes, PROGRAM_FOLDERS)],
                lower=self.runtime.lower,
                mount=program("mount"),
            )
        )
        return path

    def _resolver(self) -> Bind:
        """Return what lets the container ask for names of the cluster."""
        path = self.folder / "resolv.conf"
        namespace, server = self.pod["metadata"]["namespace"], self.runtime.block.host_ip
        path.write_text(resolver_configuration(namespace, server))
        return Bind(
            source=str(path),
            target=os.path.realpath("/etc/resolv.conf"),
            is_file=True,
            read_only=True,
        )

    def _base_environment(self, container: Json) -> dict[str, str]:
        host, port = self.runtime.api_address if self.network is None else CLUSTER_API
        variables = {
            **self.runtime.base_environment,
            "HOSTNAME": self.pod["metadata"]["name"],
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
        }
        if gpus := self.gpus.get(container["name"]):
            variables["NVIDIA_VISIBLE_DEVICES"] = ",".join(str(each) for each in gpus)
        return variables

    def image_of(self, container: Json) -> ImageConfig:
        """Return what stands for a container's image.

        Raises:
            NotStartableError: no pattern matches it.
        """
        image = self.runtime.config.image_for(container["image"])
        if image is None:
            raise NotStartableError(
                "ErrImagePull",
                f'no local program for image "{container["image"]}"; images are not pulled here',
            )
        return image


def num_gpus(container: Json) -> int:
    """Return the GPUs that a container is limited to, which is also what it requests."""
    return int((container.get("resources") or {}).get("limits", {}).get(GPU, 0))
