"""The calibration ConfigMap: read when this process starts to lead, written rarely."""

from dataclasses import replace

from tonnage.cluster.kube import CONFIG_MAPS, KubeApi
from tonnage.estimate.calibration import Calibrations, dump, is_material, load
from tonnage.manifests.names import MANAGER

NAME = "tonnage-calibration"
KEY = "calibration.json"
INTERVAL_S = 60


class CalibrationConfigMap:
    """One ConfigMap in the operator's namespace, and what it holds as far as we know."""

    def __init__(self, kube: KubeApi, *, namespace: str) -> None:
        self._kube, self._path = kube, CONFIG_MAPS.path(namespace, NAME)
        self._namespace = namespace
        self._held = Calibrations()
        self._written_at_s = 0.0

    def read(self) -> Calibrations:
        """Return what was learned; nothing when there is none.

        Raises:
            ValueError: it is there but of another version or no JSON: the caller says so.
        """
        self._held, self._written_at_s = Calibrations(), 0.0
        found = self._kube.get(self._path)
        text = ((found or {}).get("data") or {}).get(KEY)
        if text:
            self._held = load(text)
        return self._held

    def keep(self, known: Calibrations, now_s: float) -> Calibrations:
        """Write what is known when a constant moved by more than 2 %, once a minute at most.

        Returns it with the time of writing on what moved.
        """
        moved = {
            key: replace(entry, changed_at_s=now_s)
            for key, entry in known.speed.items()
            if is_material(self._efficiency(key), entry.bandwidth_efficiency)
        }
        is_due = now_s - self._written_at_s >= INTERVAL_S
        if not is_due or not (moved or known.memory != self._held.memory):
            return known
        known = replace(known, speed={**known.speed, **moved})
        self._apply(known)
        self._held, self._written_at_s = known, now_s
        return known

    def _efficiency(self, key: str) -> float | None:
        held = self._held.speed.get(key)
        return held.bandwidth_efficiency if held else None

    def _apply(self, known: Calibrations) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": self._namespace},
            "data": {KEY: dump(known)},
        }
        self._kube.apply(self._path, body, manager=MANAGER, force=True)
