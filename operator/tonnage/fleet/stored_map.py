"""One ConfigMap with a part of what was learned: never overwritten before it is understood."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tonnage.api.status import Reason
from tonnage.cluster.errors import WorldError
from tonnage.cluster.kube import CONFIG_MAPS, KubeApi
from tonnage.estimate.calibration import Calibrations
from tonnage.estimate.checked import CorruptedStateError, NewerStateError
from tonnage.estimate.stored import Loaded
from tonnage.manifests.names import MANAGER
from tonnage.units import HOUR_S, count_of

LOG = logging.getLogger("tonnage.calibration")
KEY: Final = "calibration.json"
SOURCE: Final = "source"
TOLD_S: Final = HOUR_S
"""For so long what was mended is still told."""


NEWER: Final = "NewerVersion"
CORRUPTED: Final = "Corrupted"
UNREADABLE: Final = "Unreadable"
WRITE_FAILED: Final = "WriteFailed"
DROPPED: Final = "EntriesDropped"
GRAVEST_FIRST: Final = (NEWER, CORRUPTED, UNREADABLE, WRITE_FAILED, DROPPED)
"""Codes, in the order in which problems are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a part is written, read, and made to fit. ``live``: {UID: namespace} of objects."""

    load: Callable[[str], Loaded]
    dump: Callable[[Calibrations], str]
    fit: Callable[[Calibrations, Mapping[str, str]], Calibrations]


class StoredMap:
    """A ConfigMap, and what it holds as far as we know."""

    def __init__(self, kube: KubeApi, form: Form, *, namespace: str, name: str, aside: str) -> None:
        self.form = form
        self._kube, self._namespace, self._name, self._aside = kube, namespace, name, aside
        self.forget()

    def forget(self) -> None:
        """Start anew: another process may have written since."""
        self.held = Calibrations()
        self.tried_at_s = 0.0
        self.is_read = self.is_unreachable = False
        self._corrupted: str | None = None
        self._found: Reason | None = None
        self._failed: Reason | None = None
        self._mended_at_s: float | None = None

    @property
    def may_overwrite(self) -> bool:
        """Tell whether it is ours to write: a later version must find again what it wrote."""
        is_newer = self._found is not None and self._found.code == NEWER
        return self.is_read and not is_newer

    def problems(self, now_s: float | None = None) -> Iterator[Reason]:
        """Yield what is wrong; what was mended is told for an hour."""
        mended_at_s = self._mended_at_s
        is_past = now_s is not None and mended_at_s is not None and now_s - mended_at_s >= TOLD_S
        if self._found and not is_past:
            yield self._found
        if self._failed:
            yield self._failed

    def read(self, at_s: float = 0.0) -> Calibrations:
        """Return what it holds; nothing where it cannot be read, which ``problems`` then tells."""
        try:
            stored = self._kube.get(CONFIG_MAPS.path(self._namespace, self._name))
        except WorldError as error:
            self.tried_at_s = at_s
            self._note_failure(UNREADABLE, f"not read: {error}", error)
            return Calibrations()
        self.rest()
        self.is_read = True
        text = ((stored or {}).get("data") or {}).get(KEY)
        self.held = self._load(text) if text else Calibrations()
        return self.held

    def write(self, part: Calibrations, now_s: float) -> bool:
        """Write a part, after what stood there and could not be read was copied; tell if it is."""
        self.tried_at_s = now_s
        try:
            if self._corrupted is not None:
                self._apply(self._aside, {KEY: self._corrupted, SOURCE: self._name})
                self._corrupted = None
            self._apply(self._name, {KEY: self.form.dump(part)})
        except WorldError as error:
            self._note_failure(WRITE_FAILED, f"not written: {error}", error)
            return False
        self.rest()
        self.held = part
        if self._mended_at_s is None:
            self._mended_at_s = now_s
        return True

    def rest(self) -> None:
        """Note that what stands there will do: what failed before is of no matter any more."""
        self.is_unreachable, self._failed = False, None

    def replace_unwritten(self, part: Calibrations, now_s: float) -> None:
        """Take a part as if it were written, where nothing may be."""
        self.held, self.tried_at_s = part, now_s

    def _load(self, text: str) -> Calibrations:
        try:
            loaded = self.form.load(text)
        except NewerStateError as error:
            self._note(NEWER, f"{error}: left as it is, nothing is saved to it")
        except CorruptedStateError as error:
            self._corrupted = text
            self._note(CORRUPTED, f"{error}: learning starts again, a copy goes to {self._aside}")
        else:
            if loaded.num_dropped or loaded.num_widened:
                self._note(
                    DROPPED,
                    f"{count_of(loaded.num_dropped, 'entry', 'entries')} left out that cannot be, "
                    "the doubt of "
                    f"{loaded.num_widened} was set wide",
                )
            return loaded.calibrations
        return Calibrations()

    def _note(self, code: str, what: str) -> None:
        self._found = Reason(code, f"ConfigMap {self._name}: {what}")
        LOG.warning("%s", self._found.message)

    def _note_failure(self, code: str, what: str, error: WorldError) -> None:
        """Remember a failure; others need not be tried now where nobody answered at all."""
        self.is_unreachable = not error.is_refusal
        self._failed = Reason(code, f"ConfigMap {self._name}: {what}")
        LOG.warning("%s", self._failed.message)

    def _apply(self, name: str, data: Mapping[str, str]) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self._namespace},
            "data": dict(data),
        }
        path = CONFIG_MAPS.path(self._namespace, name)
        self._kube.apply(path, body, manager=MANAGER, force=True)
