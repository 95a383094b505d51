"""What safetensors files say of themselves: name, type, shape and bytes of every tensor.

A file is a number of eight bytes, a JSON header of so many bytes, and the tensors one after the
other. Only the header is read here: where each tensor lies is for the library that loads the file.

Sources:
    [safetensors] README.md and the reader of version 0.8.0: types, limits and what is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tonnage.api.strict_json import read_json
from tonnage.catalog.gpu import CatalogError
from tonnage.units import MB

LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 100 * MB
MAX_DIMENSIONS: Final = 64
METADATA: Final = "__metadata__"
LFS_POINTER: Final = b"version "
BITS_PER_BYTE: Final = 8
DTYPE_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Of one element; narrow ones are packed."""


class CheckpointError(CatalogError):
    """The files of a checkpoint are damaged, incomplete, or none."""


Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


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
