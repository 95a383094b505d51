"""The GPU classes that are known: those that ship with Tonnage, and those of a folder."""

from collections.abc import Mapping
from pathlib import Path

from tonnage.catalog.gpu import (
    GPU_FOLDER,
    CatalogError,
    Gpu,
    built_in_gpus,
    find_gpu,
    read_gpus,
)
from tonnage.cli.console import Failure, failing


def known_gpus(folder: Path | None) -> Mapping[str, Gpu]:
    """Return the built-in classes, and those of a folder over them."""
    with failing(CatalogError):
        return built_in_gpus() if folder is None else read_gpus([GPU_FOLDER, folder])


def named_gpu(name: str, known: Mapping[str, Gpu], *, field: str) -> Gpu:
    """Return the class of a name or alias; ``field``: where it was named, for the message.

    Raises:
        Failure: no class is called so.
    """
    try:
        return find_gpu(name, known)
    except CatalogError as error:
        raise Failure(str(error).replace("hardware.gpu", field)) from error
