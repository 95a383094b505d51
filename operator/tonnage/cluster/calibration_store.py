"""The calibration ConfigMap: read when this process starts to lead, written rarely."""

from tonnage.cluster.kube import CONFIG_MAPS, KubeApi
from tonnage.estimate.calibration import Calibrations, dump, load
from tonnage.manifests.names import MANAGER

NAME = "tonnage-calibration"
KEY = "calibration.json"


class CalibrationStore:
    """One ConfigMap in the operator's namespace."""

    def __init__(self, kube: KubeApi, *, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace

    def read(self) -> Calibrations:
        """Return what was learned; nothing when there is none.

        Raises:
            ValueError: it is there but of another version or no JSON: the caller says so.
        """
        found = self._kube.get(CONFIG_MAPS.path(self._namespace, NAME))
        text = ((found or {}).get("data") or {}).get(KEY)
        return load(text) if text else Calibrations()

    def write(self, calibrations: Calibrations) -> None:
        """Apply the whole state server-side."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": self._namespace},
            "data": {KEY: dump(calibrations)},
        }
        path = CONFIG_MAPS.path(self._namespace, NAME)
        self._kube.apply(path, body, manager=MANAGER, force=True)
