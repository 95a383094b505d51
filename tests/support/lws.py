"""The CRD of LeaderWorkerSet, out of the Go module that its authors publish."""

import json
import shutil
from pathlib import Path
from typing import Final

from tonnage_lab import assets, toolchain
from tonnage_lab.processes import run

MODULE: Final = "sigs.k8s.io/lws@v0.9.0"
CRD: Final = "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml"


def copy_crd(folder: Path) -> Path:
    """Put the CRD into a folder; return the file.

    Raises:
        LabError: the module cannot be had.
    """
    scratch = assets.cache_folder() / "build"
    go = toolchain.go(scratch)
    settings = toolchain.environment(go, scratch) | {"GOFLAGS": "-mod=mod"}
    said = run([go, "mod", "download", "-json", MODULE], folder=folder, environment=settings)
    return Path(shutil.copy(Path(json.loads(said)["Dir"]) / CRD, folder))
