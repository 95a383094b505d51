"""kubeconform, built as the lab's programs are; its module stands with the tests.

In ``deploy/local`` it would have every machine build the control plane anew.
"""

from pathlib import Path

from tonnage_lab import assets, toolchain
from tonnage_lab.assets import AssetPaths

SOURCES = Path(__file__).parent / "go"


def ensure() -> Path:
    """Return the program, built if it is not here.

    Raises:
        LabError: it can neither be found nor built.
    """
    home = assets.cache_folder()
    where = AssetPaths(
        sources=SOURCES,
        programs=home / "assets" / assets.digest(SOURCES, toolchain.release()),
        scratch=home / "build",
    )
    return assets.ensure(["kubeconform"], where=where)["kubeconform"]
