"""Helm on the chart of this repository, for tests."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tonnage.units import MIB
from tonnage_lab.processes import run

CHART = Path(__file__).parents[2] / "charts/tonnage"
NAMESPACE = "tonnage-system"
PROMETHEUS = "http://prometheus.test:9090"

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Helm:
    """Call it with arguments and values; it returns what Helm prints, or raises a LabError."""

    program: Path
    home: Path
    """Where Helm may write."""
    kubeconfig: Path | None = None

    def __call__(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        cluster = ["--kubeconfig", self.kubeconfig] if self.kubeconfig else []
        given = [] if values is None else ["--values", "-"]
        return run(
            [self.program, *arguments, *cluster, *given],
            environment={"HELM_CACHE_HOME": str(self.home), "HELM_CONFIG_HOME": str(self.home)},
            text=json.dumps(values),
        )

    def template(self, *, served: Sequence[str] = (), **values: Any) -> list[Manifest]:
        """Render the chart; a Prometheus is given unless the values say otherwise.

        ``served``: API versions that the cluster has beside those of Kubernetes.
        """
        more = [word for each in served for word in ("--api-versions", each)]
        text = self(
            "template", "tonnage", CHART, "--namespace", NAMESPACE, *more,
            values=with_prometheus(values),
        )  # fmt: skip
        made = yaml.load_all(text, Loader=yaml.CSafeLoader)  # a fifth of the time of safe_load_all
        return [manifest for manifest in made if manifest]


def with_prometheus(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the one setting that has no default."""
    return {**values, "settings": {"prometheusUrl": PROMETHEUS} | dict(values.get("settings", {}))}


def memory_limit_bytes() -> int:
    """Return what the chart lets the operator take."""
    values: Any = yaml.safe_load((CHART / "values.yaml").read_text())
    text: str = values["resources"]["limits"]["memory"]
    assert text.endswith("Mi")
    return int(text.removesuffix("Mi")) * MIB
