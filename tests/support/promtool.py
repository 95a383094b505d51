"""promtool, which checks rules: the one on the PATH, else Debian's, unpacked and kept."""

import os
import shutil
from pathlib import Path

from tonnage.lab import assets, debian
from tonnage.lab.processes import LabError


def find() -> Path | None:
    """Return the program; None where it is neither here nor to be had."""
    if on_path := shutil.which("promtool"):
        return Path(on_path)
    kept = assets.cache_folder() / "promtool"
    if os.access(kept, os.X_OK):
        return kept
    folder = assets.cache_folder() / "promtool.unpacked"
    try:
        debian.unpack("promtool", folder)
        (folder / "usr/bin/promtool").rename(kept)
    except (LabError, OSError):
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return kept
