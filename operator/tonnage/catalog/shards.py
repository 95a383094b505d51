"""The files that make up one checkpoint: which they are, and that none is missing."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tonnage.catalog.safetensors import Checkpoint, CheckpointError, Tensor, json_object
from tonnage.units import count_of

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,230}\.safetensors")
_SHARD: Final = re.compile(r"(?P<stem>.*)-[0-9]+-of-(?P<total>[0-9]{1,9})\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Which file holds which tensor, as ``model.safetensors.index.json`` has it."""

    file_of: Mapping[str, str]
    total_bytes: int | None = None
    """What the index claims of all tensors together."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.file_of.values())))


def read_index(content: bytes, *, file: str) -> Index:
    """Return the content of ``model.safetensors.index.json``.

    Raises:
        CheckpointError: it is no such index, or names a file outside its own folder.
    """
    index = json_object(content, file=file)
    file_of = index.get("weight_map")
    if not isinstance(file_of, dict) or not file_of:
        raise CheckpointError(f"{file}: weight_map is missing or empty")
    for tensor, name in file_of.items():
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise CheckpointError(
                f"{file}: weight_map: tensor {tensor!r:.200} is in {name!r:.200}, which is no "
                "name of a safetensors file in the same folder"
            )
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    is_whole = isinstance(total, int | float) and total == total // 1
    return Index(file_of=file_of, total_bytes=int(total) if is_whole and total else None)


def files_without_index(names: Iterable[str]) -> tuple[str, ...]:
    """Return the files of a folder without an index that make up one checkpoint.

    Mistral publishes the same weights a second time under ``consolidated``.

    Raises:
        CheckpointError: there is none, or one of several that are numbered is missing.
    """
    found = sorted(name for name in names if _FILE_NAME.fullmatch(name))
    chosen = [name for name in found if not name.startswith("consolidated")] or found
    if not chosen:
        raise CheckpointError("no safetensors file, and no model.safetensors.index.json")
    shards = [match for name in chosen if (match := _SHARD.fullmatch(name))]
    for stem, total in {(match["stem"], match["total"]) for match in shards}:
        present = sum((match["stem"], match["total"]) == (stem, total) for match in shards)
        if present < int(total):
            files = count_of(int(total), "file")
            raise CheckpointError(f"{present} of {files} {stem}-*-of-{total} are there")
    return tuple(chosen)


def join_files(
    headers: Mapping[str, Iterable[Tensor]], *, index: Index | None = None
) -> Checkpoint:
    """Return the checkpoint that these files make up, by their names.

    Raises:
        CheckpointError: a tensor is given twice, or not where the index says.
    """
    holder: dict[str, str] = {}
    for file, tensors in headers.items():
        for tensor in tensors:
            if tensor.name in holder:
                raise CheckpointError(
                    f"{file}: tensor {tensor.name!r:.200} is in {holder[tensor.name]} already"
                )
            holder[tensor.name] = file
    checkpoint = Checkpoint(tensors=tuple(tensor for each in headers.values() for tensor in each))
    return checkpoint if index is None else _as_indexed(checkpoint, index, holder)


def _as_indexed(checkpoint: Checkpoint, index: Index, holder: Mapping[str, str]) -> Checkpoint:
    for name, file in index.file_of.items():
        if holder.get(name) != file:
            raise CheckpointError(f"{file}: tensor {name!r:.200} is not there, as the index says")
    if index.total_bytes in {None, checkpoint.total_bytes}:
        return checkpoint
    note = f"the index claims {index.total_bytes} bytes, the headers have {checkpoint.total_bytes}"
    return replace(checkpoint, notes=(note,))
