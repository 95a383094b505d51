"""What safetensors files say of themselves, and which of them make up one checkpoint.

A file is a number of eight bytes, a JSON header of so many bytes, and the tensors one after the
other. Only the header is read here: where each tensor lies is for the library that loads the file.

Sources:
    [safetensors] README.md and the reader of version 0.8.0: types, limits and what is refused.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tonnage.api.strict_json import read_json
from tonnage.catalog.gpu import CatalogError
from tonnage.units import MB, count_of

_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,230}\.safetensors")
_SHARD: Final = re.compile(r"(?P<stem>.*)-[0-9]+-of-(?P<total>[0-9]{1,9})\.safetensors")
LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 100 * MB
MAX_DIMENSIONS: Final = 64
METADATA: Final = "__metadata__"
LFS_POINTER: Final = b"version "
BITS_PER_BYTE: Final = 8
_NUMBERS: Final = (
    "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ",
    "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64",
)  # fmt: skip
DTYPE_BITS: Final = {"BOOL": 8} | {name: int(re.findall(r"\d+", name)[0]) for name in _NUMBERS}
"""Of one element, as its name says; narrow ones are packed."""
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class CheckpointError(CatalogError):
    """The files of a checkpoint are damaged, incomplete, or none."""


class _Entry(msgspec.Struct):
    """What a header says of one tensor."""

    dtype: str
    shape: Annotated[tuple[Number, ...], Meta(max_length=MAX_DIMENSIONS)]
    data_offsets: tuple[Number, Number]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor in a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors of all files of a model."""

    tensors: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.tensors)


def header_end(start: bytes, *, file: str) -> int:
    """Return how many bytes of a file the header and its length take, given the first eight.

    Raises:
        CheckpointError: there are no eight, or the header is longer than any that is read.
    """
    if len(start) < LENGTH_BYTES:
        raise CheckpointError(
            f"{file}: cut off: {len(start)} bytes, but the header's length alone takes "
            f"{LENGTH_BYTES}"
        )
    if start.startswith(LFS_POINTER):
        raise CheckpointError(f"{file}: a Git LFS pointer; the file itself was not fetched")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{file}: no safetensors file: its header would have {length} bytes; at most "
            f"{MAX_HEADER_BYTES} are read"
        )
    return LENGTH_BYTES + length


def read_header(content: bytes, *, file: str, file_bytes: int | None = None) -> tuple[Tensor, ...]:
    """Return the tensors of one file.

    ``content`` is the beginning of the file, at least to the end of the header. ``file_bytes`` is
    the size of the whole file, where it is known.

    Raises:
        CheckpointError: names the file, the tensor and what is wrong.
    """
    end = header_end(content, file=file)
    if len(content) < end:
        raise CheckpointError(
            f"{file}: cut off: the header ends at byte {end}, the file at {len(content)}"
        )
    header = json_object(content[LENGTH_BYTES:end], file=file)
    header.pop(METADATA, None)
    tensors = tuple(_tensor(name, entry, file) for name, entry in header.items())
    data_bytes = sum(tensor.num_bytes for tensor in tensors)
    if file_bytes is not None and file_bytes != end + data_bytes:
        fault = "cut off" if file_bytes < end + data_bytes else "not all of it is tensors"
        raise CheckpointError(
            f"{file}: {fault}: header and tensors take {end + data_bytes} bytes, the file has "
            f"{file_bytes}"
        )
    return tensors


def json_object(content: bytes, *, file: str) -> dict[str, Any]:
    """Read a JSON object, to the letter.

    Raises:
        CheckpointError: it is none, a key is given twice, or it is not UTF-8.
    """
    try:
        values = read_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{file}: not UTF-8 text at byte {error.start}") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: not JSON: {str(error)[:300]}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{file}: the JSON is no object")
    return values


def _tensor(name: str, entry: object, file: str) -> Tensor:
    where = f"{file}: tensor {name!r:.200}"
    try:
        found = msgspec.convert(entry, _Entry)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{where}: {error}") from error
    begin, end = found.data_offsets
    if found.dtype not in DTYPE_BITS:
        known = ", ".join(DTYPE_BITS)
        raise CheckpointError(f"{where}: dtype = {found.dtype!r:.100} is none of {known}")
    num_bits = DTYPE_BITS[found.dtype] * math.prod(found.shape)
    if num_bits != (end - begin) * BITS_PER_BYTE:
        raise CheckpointError(
            f"{where}: {found.dtype} of shape {list(found.shape)!r:.100} takes {num_bits} bits, "
            f"data_offsets give it {end - begin} bytes"
        )
    return Tensor(name=name, dtype=found.dtype, shape=found.shape, num_bytes=end - begin)


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
    for name, file in index.file_of.items() if index else ():
        if holder.get(name) != file:
            raise CheckpointError(f"{file}: tensor {name!r:.200} is not there, as the index says")
    if index is None or index.total_bytes in {None, checkpoint.total_bytes}:
        return checkpoint
    note = f"the index claims {index.total_bytes} bytes, the headers have {checkpoint.total_bytes}"
    return replace(checkpoint, notes=(note,))
