"""The audit log of an API server, read as it grows: lines that hold one of some marks."""

import os
from collections.abc import Collection
from pathlib import Path

from site_lab import Request, audited


class AuditLog:
    """Goes on over the log's rotation. A line that is half written comes with the next look."""

    def __init__(self, path: Path, marks: Collection[bytes]) -> None:
        self._path, self._marks = path, marks
        self._file, self._rest = path.open("rb"), b""

    def read(self) -> list[Request]:
        """Return what was answered since this was last asked."""
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
