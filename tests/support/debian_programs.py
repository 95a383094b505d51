"""Programs that tests check against: the one on the PATH, else Debian's, unpacked once."""

import os
import shutil
from pathlib import Path

from tonnage_lab import assets, download
from tonnage_lab.processes import LabError


def find(name: str) -> Path | None:
    """Return the program of the package of this name; None where it is neither here nor there."""
    if on_path := shutil.which(name):
        return Path(on_path)
    kept = assets.cache_folder() / name
    if os.access(kept, os.X_OK):
        return kept
    folder = assets.cache_folder() / f"{name}.unpacked"
    try:
        download.unpack(name, folder)
        (folder / "usr/bin" / name).rename(kept)
    except (LabError, OSError):
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return kept
