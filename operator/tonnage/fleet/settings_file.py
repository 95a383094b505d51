"""Files of an administrator: load tests and settings, looked at for edits that would be refused.

What a process began with it keeps: both are read at its start. Who edits the ConfigMap of the
settings by hand is told whether the next process would start with it, before one has to.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml
from prometheus_client import Gauge
from pydantic import ValidationError

from tonnage.api.objects import describe_errors
from tonnage.estimate.calibration_file import (
    CalibrationFile,
    Identity,
    LoadTest,
    load,
    load_test_of,
)
from tonnage.estimate.errors import CalibrationFileError
from tonnage.fleet.logs import Line
from tonnage.settings import Settings
from tonnage.units import MIB

LOG = logging.getLogger("tonnage.settings")
NO_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError)
"""What PyYAML raises: of a value that is not what its tag says, whatever made it stumble."""


def read_settings(path: str) -> Settings:
    """Read the settings file.

    Raises:
        ValueError: no YAML mapping, or a field is unknown or out of bounds.
    """
    try:
        return Settings.model_validate(yaml.safe_load(Path(path).read_text()))
    except ValidationError as error:
        raise ValueError(f"{path}: {describe_errors(error, root='settings')}") from error
    except (OSError, RecursionError, *NO_YAML) as error:
        raise ValueError(f"{path}: {error}") from error


@dataclass(slots=True)
class SettingsFile:
    """Says of an edited file what comes of it, once for each edit."""

    path: str
    valid: Gauge
    _content: bytes | None = field(init=False)

    def __post_init__(self) -> None:
        self._content = self._read()
        self.valid.set(1)

    def look(self) -> None:
        """Read the file if it is another than before."""
        content = self._read()
        if content == self._content:
            return
        self._content = content
        wrong = ""
        try:
            read_settings(self.path)
        except ValueError as error:
            wrong = str(error)
        self.valid.set(not wrong)
        if wrong:
            message = f"{wrong}; those of the start stay, a process that starts now ends"
            LOG.error(Line("the settings file is wrong", message=message))
        else:
            LOG.warning(Line("the settings file was edited", message="the next process reads it"))

    def _read(self) -> bytes | None:
        try:
            return Path(self.path).read_bytes()
        except OSError:
            return None


FOLDER_LOG = logging.getLogger("tonnage.calibrations")
MAX_BYTES: Final = MIB


def read_calibrations(folder: Path) -> Mapping[Identity, LoadTest]:
    """Return what the ``*.json`` of a folder say, by the identity of their keys.

    What cannot be read is named in the log and left out: without it the catalogue's prior stands.
    Of two files about the same engine the one measured last counts.
    """
    if not folder.is_dir():
        line = Line("calibrations not used", folder=str(folder), message="no such folder")
        FOLDER_LOG.error(line)
        return {}
    found: dict[Identity, tuple[Path, CalibrationFile]] = {}
    for path, file in _readable(sorted(folder.glob("*.json"))):
        other = found.get(file.key.identity)
        if other is None:
            found[file.key.identity] = path, file
            continue
        older, newer = sorted((other, (path, file)), key=lambda each: each[1].measured_at_s)
        message = f"{newer[0]} is newer, for the same engine"
        FOLDER_LOG.warning(Line("calibration not used", file=str(older[0]), message=message))
        found[file.key.identity] = newer
    for path, file in found.values():
        FOLDER_LOG.info(Line("prior", file=str(path), measured=str(file.date), of=str(file.key)))
    return {identity: load_test_of(file) for identity, (_, file) in found.items()}


def _readable(paths: Iterable[Path]) -> Iterable[tuple[Path, CalibrationFile]]:
    for path in paths:
        try:
            yield path, read_calibration(path)
        except (OSError, UnicodeDecodeError, CalibrationFileError) as error:
            line = Line("calibration not used", file=str(path), message=str(error))
            FOLDER_LOG.error(line)


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
