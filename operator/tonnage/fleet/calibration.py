"""The calibration ConfigMap: read when this process starts to lead, written rarely.

It is never overwritten before it is understood.
"""

import logging
import operator
from collections.abc import Callable, Mapping
from typing import Final

from tonnage.api.status import Reason
from tonnage.cluster.calls import WorldError
from tonnage.cluster.kube import CONFIG_MAPS, KubeApi
from tonnage.control.input.times import age_s
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.stored import (
    CorruptedStateError,
    Loaded,
    NewerStateError,
    dump,
    fitting,
    has_moved,
    load,
)
from tonnage.manifests.names import MANAGER
from tonnage.units import HOUR_S, count_of

LOG = logging.getLogger("tonnage.calibration")
NAME: Final = "tonnage-calibration"
ASIDE: Final = f"{NAME}-corrupt-0"
"""A copy of what could not be read."""
KEY: Final = "calibration.json"
SOURCE: Final = "source"
INTERVAL_S: Final = 60
TOLD_S: Final = HOUR_S
"""For so long a problem that was mended is still reported."""


class CalibrationConfigMap:
    """What was learned, in the operator's namespace. No failure of it ends a tick.

    ``kube``: fenced by the Lease.
    """

    def __init__(self, kube: KubeApi, *, namespace: str) -> None:
        self._kube, self._namespace = kube, namespace
        self._forget()

    def _forget(self) -> None:
        """Start anew: another process may have written since."""
        self._held = Calibrations()
        self._tried_at_s = 0.0
        self._is_read = False
        self._unread: str | None = None
        """What is there and cannot be read."""
        self._corrupted: str | None = None
        self._found: Reason | None = None
        self._failed: Reason | None = None
        self._mended_at_s: float | None = None
        self.problem: Reason | None = None
        """Why what was learned is not all stored, or was not all read."""
        self.unstored = frozenset[str]()
        """UIDs of the objects that are there for whose entry there is no room."""

    def read(self) -> Calibrations:
        """Return what was learned, as far as it can be read.

        What the API server does not hand out is read by ``keep`` later, and not written before.
        """
        self._forget()
        known, self.problem = self._read(), self._told_now()
        return known

    def keep(
        self, known: Calibrations, now_s: float, *, live: Mapping[str, str], is_last: bool = False
    ) -> Calibrations:
        """Write the ConfigMap if a constant moved by more than 2 %, once a minute at most.

        Returns what is known then: with what could be read only now, and without what there is no
        room for. ``live``: namespaces of the ModelDeployments that are there, by UID. ``is_last``:
        there is no later time for it, so that it is now, however little moved.
        """
        kept = known
        if is_last or age_s(self._tried_at_s, now_s) >= INTERVAL_S:
            kept = self._keep(known, now_s, live, operator.ne if is_last else has_moved)
        self.problem = self._told_now(now_s)
        return kept

    def _keep(
        self,
        known: Calibrations,
        now_s: float,
        live: Mapping[str, str],
        moved: Callable[[Calibrations, Calibrations], bool],
    ) -> Calibrations:
        is_unread = self._unread is not None and self._mended_at_s is None
        if is_unread or not self._is_read:  # somebody may have mended it, or taken it away
            known = _merge(self._read(), known)
            if is_unread or self._failed is not None:
                self._tried_at_s = now_s
            if self._failed is not None:
                return known
        kept = fitting(known, live=live) if moved(self._held, known) else known
        self.unstored = frozenset(live.keys() & (known.objects.keys() - kept.objects.keys()))
        if not moved(self._held, kept):
            self._failed = None  # what is there will do
            self._tried_at_s = self._tried_at_s if kept is known else now_s
            return kept
        self._tried_at_s = now_s
        # What a later version wrote, it must find again.
        is_newer = self._found is not None and self._found.code == "NewerVersion"
        if not is_newer and not self._write(kept, now_s):
            return known
        self._held = kept
        return kept

    def _read(self) -> Calibrations:
        try:
            loaded = self._load()
        except WorldError as error:
            self._failed = _told("Unreadable", f"not read: {error}")
            return Calibrations()
        self._is_read, self._failed = True, None
        if loaded.num_dropped or loaded.num_widened:
            entries = count_of(loaded.num_dropped, "entry", "entries")
            widened = f"the uncertainty of {loaded.num_widened} was widened"
            what = f"{entries} dropped as impossible, {widened}"
            self._found = _told("EntriesDropped", what)
        self._held = loaded.calibrations
        return self._held

    def _load(self) -> Loaded:
        """Read what is stored: nothing, and why, where it cannot be."""
        stored = self._kube.get(CONFIG_MAPS.path(self._namespace, NAME)) or {}
        text = (stored.get("data") or {}).get(KEY)
        if self._unread is not None:
            if text == self._unread:
                return Loaded(calibrations=Calibrations())
            self._found = self._corrupted = self._unread = None
        try:
            return load(text) if text else Loaded(calibrations=Calibrations())
        except (NewerStateError, CorruptedStateError) as error:
            self._unread = text
            if isinstance(error, NewerStateError):
                message = f"{error}: it is not changed, and nothing is saved"
                self._found = _told("NewerVersion", message)
            else:
                self._corrupted = text
                message = f"{error}: learning starts again, a copy goes to {ASIDE}"
                self._found = _told("Corrupted", message)
        return Loaded(calibrations=Calibrations())

    def _write(self, known: Calibrations, now_s: float) -> bool:
        """Write all, after what could not be read was copied; tell if it is done."""
        try:
            if self._corrupted is not None:
                self._apply(ASIDE, {KEY: self._corrupted, SOURCE: NAME})
                self._corrupted = None
            self._apply(NAME, {KEY: dump(known)})
        except WorldError as error:
            self._failed = _told("WriteFailed", f"not written: {error}")
            return False
        self._failed = None
        if self._mended_at_s is None:
            self._mended_at_s = now_s
        return True

    def _apply(self, name: str, data: Mapping[str, str]) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self._namespace},
            "data": dict(data),
        }
        path = CONFIG_MAPS.path(self._namespace, name)
        self._kube.apply(path, body, manager=MANAGER, force=True)

    def _told_now(self, now_s: float | None = None) -> Reason | None:
        """Return what is wrong; what was mended is reported for an hour."""
        mended_at_s = self._mended_at_s
        is_past = (
            now_s is not None and mended_at_s is not None and age_s(mended_at_s, now_s) >= TOLD_S
        )
        found = self._found if not is_past else None
        problems = [each for each in (found, self._failed) if each]
        if not problems:
            return None
        return Reason(problems[0].code, "; ".join(each.message for each in problems))


def _told(code: str, what: str) -> Reason:
    LOG.warning("%s", message := f"ConfigMap {NAME}: {what}")
    return Reason(code, message)


def _merge(*known: Calibrations) -> Calibrations:
    """Return all; what comes later counts before what comes first."""
    return Calibrations(
        speed={at: entry for each in known for at, entry in each.speed.items()},
        memory={at: entry for each in known for at, entry in each.memory.items()},
        objects={at: entry for each in known for at, entry in each.objects.items()},
    )
