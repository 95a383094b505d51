"""Calibration files: read, and replaced in one move."""

import os
import tempfile
from pathlib import Path

from tonnage.cli.console import Failure, failing
from tonnage.cli.read.manifest import read_text
from tonnage.estimate.calibration_file import (
    CalibrationFile,
    CalibrationKey,
    check_key,
    dump,
    load,
)
from tonnage.estimate.errors import CalibrationFileError


def read_calibration(path: Path) -> CalibrationFile:
    """Read a calibration.

    Raises:
        Failure: there is none, or it is something else.
    """
    with failing(CalibrationFileError, where=f"{path}: "):
        return load(read_text(str(path)))


def check_target(path: Path, key: CalibrationKey) -> None:
    """Refuse, before anything is measured, to write over what is no calibration of this key.

    Raises:
        Failure: with both keys, or what else is in the way.
    """
    if not path.parent.is_dir():
        raise Failure(f"{path}: there is no folder {path.parent}")
    if not path.exists():
        return
    with failing(CalibrationFileError, where=f"{path} is not replaced: "):
        check_key(read_calibration(path), key)


def write_calibration(path: Path, file: CalibrationFile) -> None:
    """Write a calibration beside the target, then put it in its place: never half of one.

    Raises:
        Failure: the folder does not take it.
    """
    with (
        failing(OSError, where=f"{path}: "),
        tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as draft,
    ):
        try:
            draft.write(dump(file))
            draft.flush()
            os.fsync(draft.fileno())
            Path(draft.name).chmod(0o644)
            Path(draft.name).replace(path)
        except OSError:
            Path(draft.name).unlink(missing_ok=True)
            raise
