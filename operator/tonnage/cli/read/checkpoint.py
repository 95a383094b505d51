"""The tensors of a checkpoint, from the headers of its files: of gigabytes, kilobytes are read."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tonnage.catalog.safetensors import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    Checkpoint,
    CheckpointError,
    Index,
    Tensor,
    files_without_index,
    header_end,
    join_files,
    read_header,
    read_index,
)
from tonnage.cli.console import Failure
from tonnage.units import count_of

INDEX: Final = "model.safetensors.index.json"
MAX_INDEX_BYTES: Final = MAX_HEADER_BYTES
MAX_FILES: Final = 500
"""The largest checkpoints have fewer than two hundred."""
MAX_HEADERS_BYTES: Final = 2 * MAX_HEADER_BYTES
"""Of all files together: a model of 384 experts per layer has a tenth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The first bytes of a file."""

    content: bytes
    file_bytes: int | None
    """Of the whole file; None: the server does not say."""


class Files(Protocol):
    """Where the files of one checkpoint lie."""

    def names(self) -> Iterable[str]:
        """Return the names of all files."""

    def whole(self, name: str, *, max_bytes: int) -> bytes | None:
        """Return a file up to one byte more than allowed; None: there is no such file."""

    def beginning(self, name: str, *, num_bytes: int) -> Beginning:
        """Return so many bytes from the start of a file, or as many as it has, or more."""


def read_checkpoint(files: Files, *, max_headers_bytes: int = MAX_HEADERS_BYTES) -> Checkpoint:
    """Return the tensors of a checkpoint: of the files that its index lists, else of all.

    Raises:
        CheckpointError: names the file and what is wrong with it.
    """
    index = _index(files)
    names = files_without_index(files.names()) if index is None else index.files
    if len(names) > MAX_FILES:
        raise CheckpointError(f"{count_of(len(names), 'file')}; at most {MAX_FILES} are read")
    headers: dict[str, tuple[Tensor, ...]] = {}
    remaining_bytes = max_headers_bytes
    for name in names:
        beginning = _beginning(files, name)
        remaining_bytes -= len(beginning.content)
        if remaining_bytes < 0:
            raise CheckpointError(
                f"{name}: the headers up to here have more than {max_headers_bytes} bytes"
            )
        headers[name] = read_header(beginning.content, file=name, file_bytes=beginning.file_bytes)
    return join_files(headers, index=index)


def _index(files: Files) -> Index | None:
    content = files.whole(INDEX, max_bytes=MAX_INDEX_BYTES)
    if content is None:
        return None
    if len(content) > MAX_INDEX_BYTES:
        raise CheckpointError(f"{INDEX}: larger than {MAX_INDEX_BYTES} bytes")
    return read_index(content, file=INDEX)


def _beginning(files: Files, name: str) -> Beginning:
    """Return a file up to the end of its header."""
    start = files.beginning(name, num_bytes=LENGTH_BYTES)
    end = header_end(start.content, file=name)
    if len(start.content) < end:
        start = files.beginning(name, num_bytes=end)
    return Beginning(content=start.content[:end], file_bytes=start.file_bytes)


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint on disk; its files may be links, as in the cache of the hub's own client."""

    path: Path

    def names(self) -> Iterable[str]:
        return [path.name for path in self.path.iterdir()]

    def whole(self, name: str, *, max_bytes: int) -> bytes | None:
        path = self.path / name
        return self._read(name, max_bytes + 1) if path.exists() or path.is_symlink() else None

    def beginning(self, name: str, *, num_bytes: int) -> Beginning:
        content = self._read(name, num_bytes)
        return Beginning(content=content, file_bytes=(self.path / name).stat().st_size)

    def _read(self, name: str, num_bytes: int) -> bytes:
        path = self.path / name
        if not path.is_file():  # nor a pipe, which would hang
            raise CheckpointError(f"{name}: there is no such file")
        with path.open("rb") as file:
            return file.read(num_bytes)


def checkpoint_in(folder: Path) -> Checkpoint:
    """Return the tensors of the checkpoint in a folder.

    Raises:
        Failure: names the file and what is wrong with it.
    """
    try:
        return read_checkpoint(Folder(folder))
    except CheckpointError as error:
        raise Failure(f"--checkpoint {folder}: {error}") from error
    except OSError as error:
        raise Failure(f"--checkpoint {error.filename or folder}: {error.strerror}") from error
