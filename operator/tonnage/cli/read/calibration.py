"""Calibration files."""

from pathlib import Path

from tonnage.cli.console import failing
from tonnage.cli.read.manifest import read_text
from tonnage.estimate.calibration_file import CalibrationFile, load
from tonnage.estimate.errors import CalibrationFileError


def read_calibration(path: Path) -> CalibrationFile:
    """Read a calibration.

    Raises:
        Failure: there is none, or it is something else.
    """
    with failing(CalibrationFileError, where=f"{path}: "):
        return load(read_text(str(path)))
