"""Files of ``tonnage calibrate`` that an administrator gives the operator: read at its start."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tonnage.estimate.calibration_file import (
    CalibrationFile,
    Identity,
    LoadTest,
    load,
    load_test_of,
)
from tonnage.estimate.errors import CalibrationFileError
from tonnage.fleet.logs import Line
from tonnage.units import MIB

LOG = logging.getLogger("tonnage.calibrations")
MAX_BYTES: Final = MIB


def read_calibrations(folder: Path) -> Mapping[Identity, LoadTest]:
    """Return what the ``*.json`` of a folder say, by the identity of their keys.

    What cannot be read is named in the log and left out: without it the catalogue's prior stands.
    Of two files about the same engine the one measured last counts.
    """
    if not folder.is_dir():
        LOG.error(Line("calibrations not used", folder=str(folder), message="no such folder"))
        return {}
    found: dict[Identity, tuple[Path, CalibrationFile]] = {}
    for path, file in _readable(sorted(folder.glob("*.json"))):
        other = found.get(file.key.identity)
        if other is None:
            found[file.key.identity] = path, file
            continue
        older, newer = sorted((other, (path, file)), key=lambda each: each[1].measured_at_s)
        LOG.warning(
            Line(
                "calibration not used",
                file=str(older[0]),
                message=f"{newer[0]} is newer, for the same engine",
            )
        )
        found[file.key.identity] = newer
    for path, file in found.values():
        LOG.info(Line("prior", file=str(path), measured=str(file.date), of=str(file.key)))
    return {identity: load_test_of(file) for identity, (_, file) in found.items()}


def _readable(paths: Iterable[Path]) -> Iterable[tuple[Path, CalibrationFile]]:
    for path in paths:
        try:
            yield path, read_calibration(path)
        except (OSError, UnicodeDecodeError, CalibrationFileError) as error:
            line = Line("calibration not used", file=str(path), message=str(error))
            LOG.error(line)  # noqa: TRY400 -- no traceback helps


def read_calibration(path: Path) -> CalibrationFile:
    """Read a file of ``tonnage calibrate``.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read.
        CalibrationFileError: it is too large, or something else.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise CalibrationFileError(f"more than {MAX_BYTES} bytes")
    return load(content.decode())
