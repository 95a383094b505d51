"""kubectl, bound to one cluster."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tonnage_lab.processes import run, wait_until

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """Call it with arguments; it returns what kubectl prints, or raises with its complaint."""

    program: Path
    kubeconfig: Path

    def __call__(self, *arguments: str | Path, text: str | None = None) -> str:
        return run([self.program, "--kubeconfig", self.kubeconfig, *arguments], text=text)

    def apply(self, manifests: Iterable[Manifest]) -> str:
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        return self("apply", "--server-side", "-f", "-", text=json.dumps(items))

    def get(self, *arguments: str) -> Any:
        """Return an object, or a list, as the API server has it."""
        return json.loads(self("get", *arguments, "-o", "json"))

    def install_crds(self, folder: Path) -> None:
        """Create every CRD of a folder, and wait until the API server answers for them."""
        if not any(folder.glob("*.yaml")):
            return
        self("apply", "--server-side", "-f", folder)
        wait_until(
            lambda: all(is_true(crd, "Established") for crd in self.get("crds")["items"]),
            what=f"the CRDs of {folder} are established",
            timeout_s=30,
        )


def is_true(found: Manifest, condition: str) -> bool:
    """Tell whether a condition of an object is True; one that was just made has none."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)
