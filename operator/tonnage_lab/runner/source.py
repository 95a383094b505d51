"""What a pod reads from the API server: ConfigMaps, Secrets, and tokens of its ServiceAccount."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from tonnage_lab.runner import environment, volumes
from tonnage_lab.runner.api import Api, ApiError
from tonnage_lab.runner.environment import NotStartableError, PodFacts
from tonnage_lab.runner.volumes import VolumeFolders

Json = Mapping[str, Any]

CONFIG_ERROR: Final = "CreateContainerConfigError"
REFUSALS: Final = (ApiError, aiohttp.ClientError, TimeoutError)
REFRESH_FRACTION: Final = 0.8
"""Of a token's life, after which a kubelet asks for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSource:
    """Reads for one pod."""

    api: Api
    pod: Json

    @property
    def _namespace_path(self) -> str:
        return f"/api/v1/namespaces/{self.pod['metadata']['namespace']}"

    async def objects(
        self, containers: Sequence[Json], volume_specs: Sequence[Json]
    ) -> dict[tuple[str, str], Mapping[str, bytes] | None]:
        """Return the data of every object that these refer to."""
        wanted = {
            (each.resource, each.name)
            for each in [
                *(ref for container in containers for ref in environment.references(container)),
                *volumes.references(volume_specs),
            ]
        }
        return {
            (resource, name): volumes.data_of(await self._find(resource, name))
            for resource, name in sorted(wanted)
        }

    async def _find(self, resource: str, name: str) -> Json | None:
        try:
            found = await self.api.find(f"{self._namespace_path}/{resource}/{name}")
        except REFUSALS as error:
            raise NotStartableError(CONFIG_ERROR, f"{resource} {name}: {error}") from error
        if found is not None:
            found.setdefault("kind", "Secret" if resource == environment.SECRETS else "ConfigMap")
        return found

    async def write_volumes(self, facts: PodFacts, folders: VolumeFolders) -> float | None:
        """Write all volumes; the seconds after which tokens want renewal, if there are any.

        Raises:
            NotStartableError: something that they need is missing.
        """
        specs = self.pod["spec"].get("volumes") or []
        objects = await self.objects((), specs)
        for volume in specs:
            folder = folders.of(volume)
            if "hostPath" in volume:
                continue
            volumes.write(folder, volumes.files(volume, facts, objects))
        return await self.write_tokens(folders)

    async def write_tokens(self, folders: VolumeFolders) -> float | None:
        """Write fresh tokens; the seconds after which they want renewal."""
        lifetimes_s = []
        for volume in self.pod["spec"].get("volumes") or []:
            for wanted in volumes.token_refs(volume):
                content = {wanted.path: (await self._token(wanted)).encode()}
                volumes.write(folders.of(volume), content)
                lifetimes_s.append(wanted.lifetime_s)
        return min(lifetimes_s) * REFRESH_FRACTION if lifetimes_s else None

    async def _token(self, wanted: volumes.TokenRef) -> str:
        account = self.pod["spec"].get("serviceAccountName", "default")
        path = f"{self._namespace_path}/serviceaccounts/{account}/token"
        try:
            answer = await self.api.create(path, volumes.token_request(wanted, self.pod))
        except REFUSALS as error:
            raise NotStartableError(CONFIG_ERROR, f"token: {error}") from error
        return str(answer["status"]["token"])
