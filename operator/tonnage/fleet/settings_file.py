"""The file of the settings: read at the start, and looked at for edits that a process would refuse.

What a process began with it keeps. Who edits the ConfigMap by hand is told whether the next process
would start with it, before one has to.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from prometheus_client import Gauge
from pydantic import ValidationError

from tonnage.api.objects import describe_errors
from tonnage.cluster.authorization import require_installed
from tonnage.fleet.logs import Line
from tonnage.settings import Settings

LOG = logging.getLogger("tonnage.settings")
NO_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError)
"""What PyYAML raises: of a value that is not what its tag says, whatever made it stumble."""


def read_settings(path: str) -> Settings:
    """Read the settings file.

    Raises:
        ValueError: no YAML mapping, a field is unknown or out of bounds, or needs a package that
            is not installed.
    """
    try:
        found = Settings.model_validate(yaml.safe_load(Path(path).read_text()))
        require_installed(found)
    except ValidationError as error:
        raise ValueError(f"{path}: {describe_errors(error, root='settings')}") from error
    except (OSError, RecursionError, *NO_YAML) as error:
        raise ValueError(f"{path}: {error}") from error
    return found


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
        wrong = self._problem()
        self.valid.set(wrong is None)
        if wrong:
            message = f"{wrong}; those of the start stay, a process that starts now ends"
            LOG.error(Line("the settings file is wrong", message=message))
        else:
            LOG.warning(Line("the settings file was edited", message="the next process reads it"))

    def _problem(self) -> str | None:
        try:
            read_settings(self.path)
        except ValueError as error:
            return str(error)
        return None

    def _read(self) -> bytes | None:
        try:
            return Path(self.path).read_bytes()
        except OSError:
            return None
