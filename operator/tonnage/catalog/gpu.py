"""GPU classes: one TOML file each, figures with their source, read and validated once."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from tonnage.catalog.gpu_names import boards_named
from tonnage.catalog.price import (
    ASKED_OF_PRICES,
    FORBID_EXTRA,
    PositiveFloat,
    PositiveInt,
    Price,
    Source,
)
from tonnage.units import MIB, format_bytes

GPU_FOLDER = Path(__file__).parent / "gpus"
MAX_FILE_BYTES = MIB


class CatalogError(Exception):
    """A figure, class or model was asked for that the catalogue cannot give."""


class UnknownGpuError(CatalogError):
    """No class of this name is known."""


class UnknownModelError(CatalogError):
    """No model of this name is known, and no config.json was given."""


class UnsupportedEngineError(CatalogError):
    """The engine version is none, or older than any whose memory and flags are known."""


class MissingFigureError(CatalogError):
    """The entry is there, but the figure that this question needs has no source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU class. Memory is what the driver reports as total, never the brochure's figure."""

    __pydantic_config__ = FORBID_EXTRA

    name: str
    """As users write it in ``spec.hardware.gpu``."""
    aliases: tuple[str, ...] = ()
    """Other names for the same board."""
    memory_bytes: PositiveInt
    """Total that cudaMemGetInfo reports."""
    nominal_memory_bytes: PositiveInt
    """The brochure's figure: it tells boards apart, and what some drivers report."""
    memory_bytes_per_s: PositiveFloat
    peak_flop_per_s: Mapping[str, PositiveFloat] = field(hash=False)
    """Dense peak by precision (bf16, fp8, int8, fp4), without sparsity."""
    interconnect_bytes_per_s: PositiveFloat
    """Per GPU and one direction, between the GPUs of one node."""
    interconnect: str
    """nvlink or pcie."""
    gpus_per_node: PositiveInt = 8
    host_cache_bytes: PositiveInt | None = None
    """Of the host's memory, per GPU: what KV caches may take. None: not given, nodes differ."""
    product_labels: tuple[str, ...] = ()
    """Values of the node label ``nvidia.com/gpu.product`` that mean this class."""
    is_unified: bool = False
    """The processor shares the memory."""
    has_bf16: bool = True
    """False: 16-bit weights and caches are float16."""
    memory_kind: Literal["hbm", "gddr", "lpddr"] = "hbm"
    generation: str = ""
    """Of the architecture: volta, turing, ampere, ada, hopper, blackwell, blackwell-rtx."""
    tdp_watts: PositiveFloat | None = None
    price: Price = field(default_factory=Price)
    sources: tuple[Source, ...] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        """Refuse a price of power without the power that is drawn.

        Raises:
            ValueError: naming the key that is missing.
        """
        if self.price.power_usd_per_kwh is not None and self.tdp_watts is None:
            raise ValueError("price.power_usd_per_kwh needs tdp_watts")

    @property
    def is_consumer(self) -> bool:
        """It may draw a desktop, or sit behind a driver that reports all of its memory."""
        return any("GeForce" in label for label in self.product_labels)

    def flop_per_s(self, precision: str) -> float:
        """Return the dense peak for weights of this precision, in flop/s.

        A GPU without units for a narrow type computes in a wider one that it has.

        Raises:
            MissingFigureError: none of them has a figure.
        """
        for candidate in COMPUTE_FALLBACK.get(precision, (precision,)):
            if candidate in self.peak_flop_per_s:
                return self.peak_flop_per_s[candidate]
        raise MissingFigureError(f"GPU class {self.name} has no peak for {precision}")


COMPUTE_FALLBACK: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16",),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "bf16"),
    "fp4": ("fp4", "bf16"),  # without fp4 units such weights are unpacked to 16 bits
    "int4": ("bf16",),  # weight-only formats (AWQ, GPTQ) multiply in 16 bits
}


@cache
def sources() -> Mapping[str, Mapping[str, str]]:
    """Return {key: title, publisher, where, read} of every work that figures are taken from."""
    return tomllib.loads((GPU_FOLDER.parent / "sources.toml").read_text())


@cache
def _gpu_adapter() -> TypeAdapter[Gpu]:
    return TypeAdapter(Gpu)


def read_gpu(path: Path) -> Gpu:
    """Read one class from a TOML file.

    Raises:
        CatalogError: the file is too large or not TOML, or a figure is missing, misspelt or of the
            wrong type.
    """
    with path.open("rb") as file:
        written = file.read(MAX_FILE_BYTES + 1)
    if len(written) > MAX_FILE_BYTES:
        raise CatalogError(f"GPU class file {path.name}: more than {MAX_FILE_BYTES} bytes")
    try:
        content = tomllib.loads(written.decode())
        price = content.get("price", {})
        if asked := sorted(ASKED_OF_PRICES & price.keys() if isinstance(price, dict) else ()):
            raise CatalogError(
                f"GPU class file {path.name}: price.{asked[0]} belongs to a question that is asked "
                "of the command line, not to a class: leave it out"
            )
        return _gpu_adapter().validate_python(content)
    except (tomllib.TOMLDecodeError, ValidationError, UnicodeDecodeError) as error:
        raise CatalogError(f"GPU class file {path.name}: {error}") from error


def read_gpus(folders: Iterable[Path]) -> Mapping[str, Gpu]:
    """Read every class in these folders; a later folder overrides an earlier one by name."""
    files = [path for folder in folders for path in sorted(folder.glob("*.toml"))]
    return {gpu.name: gpu for gpu in map(read_gpu, files)}


@cache
def built_in_gpus() -> Mapping[str, Gpu]:
    """Return the classes that ship with Tonnage, by name."""
    return read_gpus([GPU_FOLDER])


def find_gpu(name: str, gpus: Mapping[str, Gpu]) -> Gpu:
    """Look a class up by name, alias or node label, however it is spelled.

    Raises:
        CatalogError: it is unknown, or means several; the message says which.
    """
    if name in gpus:
        return gpus[name]
    found = boards_named(name, gpus)
    if len(found) == 1:
        return found[0]
    if found:
        boards = ", ".join(f"{gpu.name} ({format_bytes(gpu.memory_bytes)})" for gpu in found)
        raise UnknownGpuError(f"hardware.gpu {name!r} means several boards: {boards}")
    near = get_close_matches(name.upper(), gpus, n=3)
    hint = f" (did you mean {', '.join(near)}?)" if near else ""
    raise UnknownGpuError(
        f"hardware.gpu {name!r} is not in the catalogue{hint}; known: {', '.join(sorted(gpus))}: "
        "NVIDIA GPUs of compute capability 7.0 or more"
    )
