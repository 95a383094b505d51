"""The GPU classes that are known: those that ship with Tonnage, and those of a folder."""

from collections.abc import Mapping
from pathlib import Path

from tonnage.catalog.gpu import GPU_FOLDER, CatalogError, Gpu, built_in_gpus, read_gpus
from tonnage.cli.console import Failure


def known_gpus(folder: Path | None) -> Mapping[str, Gpu]:
    """Return the built-in classes, and those of a folder over them."""
    try:
        return built_in_gpus() if folder is None else read_gpus([GPU_FOLDER, folder])
    except CatalogError as error:
        raise Failure(str(error)) from error
