"""The audit log of an API server, read as it grows: lines that hold one of some marks."""

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One line of the audit log."""

    asked_at_s: float
    at_s: float
    """When it was answered."""
    user: str
    verb: str
    resource: str
    """With its subresource, such as ``deployments/scale``."""
    namespace: str
    name: str
    code: int
    is_allowed: bool
    """By the rights of the user; what is allowed may still be refused, by what is there."""


def audited(line: str) -> Request | None:
    """Return what a line of the audit log says."""
    try:
        event = json.loads(line)
    except ValueError:
        return None  # no line of it
    about = event.get("objectRef") or {}
    parts = (about.get("resource", event.get("requestURI", "")), about.get("subresource"))
    return Request(
        asked_at_s=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        at_s=datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
        user=event["user"]["username"],
        verb=event["verb"],
        resource="/".join(filter(None, parts)),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
        is_allowed=event["annotations"].get("authorization.k8s.io/decision") == "allow",
    )


class AuditLog:
    """Goes on over the log's rotation. A line that is half written comes with the next look."""

    def __init__(self, path: Path, marks: Collection[bytes] = (b"",)) -> None:
        self._path, self._marks = path, marks
        self._file, self._rest = path.open("rb"), b""

    def read(self) -> list[Request]:
        """Return what was answered since this was last asked; nothing once it is closed."""
        if self._file.closed:
            return []
        found = self._new_lines()
        if self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino:
            found += self._new_lines()
            self._file.close()
            self._file = self._path.open("rb")
            found += self._new_lines()
        marked = (line.decode() for line in found if any(mark in line for mark in self._marks))
        return [each for each in map(audited, marked) if each]

    def close(self) -> None:
        self._file.close()

    def _new_lines(self) -> list[bytes]:
        *whole, self._rest = (self._rest + self._file.read()).split(b"\n")
        return whole
