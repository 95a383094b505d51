"""GPU classes: one TOML file each, figures with their source, read and validated once."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from tonnage.units import GB, MIB, count_of, format_bytes

FORBID_EXTRA: Final = ConfigDict(extra="forbid", allow_inf_nan=False)
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
_Amount = Annotated[float, Field(ge=0)]

ON_DEMAND: Final = "on demand"
SPOT: Final = "spot"
RESERVED: Final = "reserved"
"""Begins the name of each term that commits a buyer, such as "reserved 1 year"."""
TERMS: Final[Mapping[str, str]] = {
    "onDemand": ON_DEMAND,
    "spot": SPOT,
    "reserved": RESERVED,
    "reserved1Year": f"{RESERVED} 1 year",
    "reserved3Years": f"{RESERVED} 3 years",
}
"""The terms by the names that a price list has for them."""

ASKED_OF_PRICES: Final = frozenset({"missing", "whole_nodes", "provider"})
"""Fields of a price that an answer sets: no file does, since the operator pays by the replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a figure is from: a key of ``sources.toml`` and what it says there."""

    key: str
    quote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """An hour of an instance, or of one GPU. What is not known of it is empty."""

    __pydantic_config__ = FORBID_EXTRA

    usd_per_hour: PositiveFloat
    """Of the whole instance; of one GPU where ``num_gpus`` is not given."""
    num_gpus: PositiveInt | None = None
    """Of the instance. None: a GPU costs this whatever the instance."""
    instance: str = ""
    provider: str = ""
    region: str = ""
    term: str = ON_DEMAND
    date: Annotated[str, Field(pattern=r"^(\d{4}-\d{2}(-\d{2})?)?$")] = ""
    """Year and month, or day, on which the price held."""
    source: Source | None = None
    """None: somebody's own price."""

    @property
    def usd_per_gpu_hour(self) -> float:
        return self.usd_per_hour / (self.num_gpus or 1)

    def holds(self, num_gpus: int) -> bool:
        """Tell whether so many GPUs fit into one instance."""
        return self.num_gpus is None or num_gpus <= self.num_gpus

    @property
    def machine(self) -> str:
        """Name the instance with its GPUs; empty: none is known.

        >>> Rent(usd_per_hour=55.04, num_gpus=8, instance="p5.48xlarge").machine
        'p5.48xlarge (8 GPUs)'
        """
        if self.num_gpus is None:
            return self.instance
        gpus = count_of(self.num_gpus, "GPU")
        return f"{self.instance} ({gpus})" if self.instance else f"instance of {gpus}"

    @property
    def basis(self) -> str:
        """Say what the price holds for, as far as that is known.

        >>> Rent(usd_per_hour=2.1, term="spot").basis
        'yours, spot'
        """
        place = " ".join(filter(None, (self.provider, self.region)))
        own = "" if self.source else "yours"
        return ", ".join(filter(None, (own, place, self.term, self.date, self.machine)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one GPU costs, rented or owned. Administrators override both."""

    rents: tuple[Rent, ...] = ()
    rent_usd_per_hour: PositiveFloat | None = None
    """Of one GPU, on terms that are not said: the short form of one of ``rents``."""
    purchase_usd: PositiveFloat | None = None
    amortization_hours: PositiveFloat | None = None
    """Set by an administrator who owns the GPUs: the purchase price is then spread over it."""
    power_usd_per_kwh: PositiveFloat | None = None
    upkeep_usd_per_hour: _Amount = 0.0
    """Of one owned GPU: host, space, cooling, people."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    """A label: of a buyer's own price every amount is in it, whatever the name of the field."""
    term: str = ON_DEMAND
    """Of several rents, the one that is paid."""
    provider: str = ""
    """Of several, the one that is paid; empty: the first that is listed."""
    whole_nodes: bool = False
    """Instances are paid as a whole, with the GPUs that no replica uses."""
    missing: str = ""
    """Why there is no price, in words."""
    source: Source | None = None
    """Of the rent in its short form."""

    def __post_init__(self) -> None:
        """Refuse half the price of an owned GPU, and a rent in two forms: one would have to guess.

        Raises:
            ValueError: naming the keys.
        """
        if self.rents and self.rent_usd_per_hour is not None:
            raise ValueError("price.rents and price.rent_usd_per_hour: give one of both")
        if self.amortization_hours is None:
            if self.power_usd_per_kwh is not None or self.upkeep_usd_per_hour:
                raise ValueError("price: power and upkeep of an owned GPU need amortization_hours")
        elif self.purchase_usd is None:
            raise ValueError("price.amortization_hours needs price.purchase_usd")

    @property
    def offered(self) -> tuple[Rent, ...]:
        """Every rent that is known, on whatever term."""
        if self.rent_usd_per_hour is None:
            return self.rents
        return (Rent(usd_per_hour=self.rent_usd_per_hour, term="", source=self.source),)

    def paid(self) -> tuple[Rent, ...]:
        """Return one provider's rents on the term that is paid; one without a term is on any."""
        rents = self.on_term(self.term) or self.on_term("")
        provider = self.provider or (rents[0].provider if rents else "")
        return tuple(rent for rent in rents if rent.provider == provider)

    def on_term(self, term: str) -> tuple[Rent, ...]:
        return tuple(rent for rent in self.offered if rent.term == term)


def smallest(rents: tuple[Rent, ...], num_gpus: int) -> Rent | None:
    """Return the rent of the smallest instance that holds so many GPUs, of equals the cheapest."""
    holding = [rent for rent in rents if rent.holds(num_gpus)]
    return min(holding, key=lambda rent: (rent.num_gpus or 0, rent.usd_per_hour), default=None)


_NOISE: Final = frozenset(
    {"ampere", "blackwell", "core", "edition", "gddr6", "gddr6x", "gddr7", "geforce", "generation",
     "gpu", "grace", "graphics", "hbm2", "hbm2e", "hbm3", "hbm3e", "hgx", "hopper", "mega",
     "nvidia", "quadro", "server", "superchip", "tensor", "tesla", "turing", "ultra", "volta"}
)  # fmt: skip
"""Words that tell no board of the catalogue from another."""
_FORMS: Final = frozenset({"nvl", "pcie", "sxm"})
_OTHER_MAKERS: Final[Mapping[str, str]] = {
    "AMD": r"amd|instinct|radeon|mi\d{2,3}\w*",
    "AWS": r"inferentia\d*|inf\d|trainium\d*|trn\d\w*",
    "Google": r"tpu\w*",
    "Huawei": r"ascend\w*",
    "Intel": r"gaudi\d*|habana",
}
"""By maker: what a word of its accelerators' names looks like."""
_PARTS: Final[Mapping[str, str]] = {
    "a MIG slice": "mig",
    "a GPU that several pods share, by time slicing or MPS": "shared",
}
"""By what it is: the word that GPU feature discovery writes behind the product of a node."""
_RESOURCES: Final[Mapping[str, str]] = {
    "a MIG slice": r"nvidia\.com/mig-.+",
    "a GPU that several pods share, by time slicing or MPS": r"nvidia\.com/.+\.shared",
    "a share of a GPU's memory and compute": r"nvidia\.com/gpu(mem|cores).*",
    "made by AMD": r"amd\.com/.+",
    "made by AWS": r"aws\.amazon\.com/neuron.*",
    "made by Google": r"google\.com/tpu",
    "made by Huawei": r"huawei\.com/.+",
    "made by Intel": r"(gpu\.intel\.com|habana\.ai)/.+",
}
"""By what it is: the extended resource by which a container asks for it."""
_LABELS: Final[Mapping[str, str]] = {
    "MIG slices": r"nvidia\.com/mig[-.].+|cloud\.google\.com/gke-gpu-partition-size",
    "GPUs that several pods share": (
        r"(nvidia\.com/gpu\.|cloud\.google\.com/gke-gpu-)sharing-strategy"
    ),
}
"""By what it tells: the key of a label of nodes."""
_PRODUCT: Final = re.compile(r"nvidia\.com/(gpu|mig-.+)\.product")
_SIZE: Final = re.compile(r"(?<![a-z0-9])(\d{1,3})\s?gi?b?\b")
_SIZE_TOLERANCE: Final = 0.08
"""Names say GB and mean GiB, or leave out what the driver keeps."""
_MOST_NAMES: Final = 2000
"""Whose words are remembered: a catalogue's own names are asked about for every object."""


@lru_cache(maxsize=_MOST_NAMES)
def words(name: str) -> frozenset[str]:
    """Return what tells boards apart: model, form and size, in lower case.

    >>> sorted(words("NVIDIA-H100-80GB-HBM3")), sorted(words("A100 SXM4 (80 GB)"))
    (['80gb', 'h100'], ['80gb', 'a100', 'sxm'])
    """
    text = _SIZE.sub(r" \1gb ", name.casefold())
    found = re.findall(r"[a-z0-9]+", text)
    return frozenset(re.sub(r"^sxm\d$", "sxm", word) for word in found) - _NOISE


def size_gb(name: str) -> int | None:
    """Return the memory that a name gives.

    >>> size_gb("H20 141GB"), size_gb("NVIDIA-GH200-480GB"), size_gb("A100")
    (141, 480, None)
    """
    found = _SIZE.search(name.casefold().replace("-", " ").replace("_", " "))
    return int(found[1]) if found else None


def boards_named(name: str, gpus: Mapping[str, "Gpu"]) -> tuple["Gpu", ...]:
    """Return the classes that a name may mean; none: it is of no known board.

    The name, alias or node label of a class means that class, in any spelling. Of other names the
    most specific model counts: all its boards whose size and form the name does not contradict.
    A word that is neither of a board's names makes another board of it, often with other memory.
    """
    asked = words(name)
    exact = [gpu for gpu in gpus.values() if any(words(own) == asked for own in own_names(gpu))]
    if exact:
        return tuple(exact)
    return tuple(gpu for gpu in same_model(name, gpus) if _agrees(gpu, name))


def own_names(gpu: "Gpu") -> Iterable[str]:
    return (gpu.name, *gpu.aliases, *gpu.product_labels)


def same_model(name: str, gpus: Mapping[str, "Gpu"]) -> tuple["Gpu", ...]:
    """Return the boards of the model that a name means, whatever size and form it says."""
    return tuple(gpu for gpu in _near(name, gpus) if not _unknown_words(name, [gpu]))


def _near(name: str, gpus: Mapping[str, "Gpu"]) -> tuple["Gpu", ...]:
    """Return the boards of the most specific model whose words a name has, whatever else it has."""
    fitting = [gpu for gpu in gpus.values() if _model(gpu) <= words(name)]
    most = max((len(_model(gpu)) for gpu in fitting), default=0)
    return tuple(gpu for gpu in fitting if len(_model(gpu)) == most)


def _unknown_words(name: str, gpus: Iterable["Gpu"]) -> list[str]:
    """Return the words of a name that are of no name of these classes, and no size or form."""
    known = {word for gpu in gpus for own in own_names(gpu) for word in words(own)}
    rest = words(name) - known - _FORMS
    return sorted(word for word in rest if not _SIZE.fullmatch(word))


def _model(gpu: "Gpu") -> frozenset[str]:
    """Return the words of a class without its form and size."""
    return frozenset(
        word for word in words(gpu.name) if word not in _FORMS and not _SIZE.fullmatch(word)
    )


def _agrees(gpu: "Gpu", name: str) -> bool:
    asked, own = size_gb(name), gpu.nominal_memory_bytes / GB
    if asked is not None and abs(asked / own - 1) > _SIZE_TOLERANCE:
        return False
    forms = words(name) & _FORMS
    has_form = {form for known in own_names(gpu) for form in words(known) & _FORMS}
    return not forms or forms == has_form


GPU_FOLDER = Path(__file__).parent / "gpus"
MAX_FILE_BYTES = MIB
_PLANNED: Final = "NVIDIA GPUs of compute capability 7.0 or more"
_NOT_PLANNED: Final = f"which Tonnage does not support: it plans for whole {_PLANNED}"


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
        CatalogError: the file is too large or not TOML, a figure is missing, misspelt or of the
            wrong type, or a name is of a part of a GPU.
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
        gpu = _gpu_adapter().validate_python(content)
    except (tomllib.TOMLDecodeError, ValidationError, UnicodeDecodeError) as error:
        raise CatalogError(f"GPU class file {path.name}: {error}") from error
    for name in own_names(gpu):
        check_whole(name, where=f"GPU class file {path.name}:")
    return gpu


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
        CatalogError: it is unknown, a part of a GPU, or means several; the message says which.
    """
    check_whole(name, where="hardware.gpu")
    if name in gpus:
        return gpus[name]
    found = boards_named(name, gpus)
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownGpuError(f"hardware.gpu {name!r} means several boards: {_listed(found)}")
    raise UnknownGpuError(f"hardware.gpu {name!r} {_why_unknown(name, gpus)}")


def check_whole(name: str, *, where: str) -> None:
    """Refuse the name of a part of a GPU: its memory and its bandwidth are not the GPU's.

    Raises:
        UnknownGpuError: it says that.
    """
    for part, word in _PARTS.items():
        if word in words(name):
            raise UnknownGpuError(f"{where} {name!r} is {part}, {_NOT_PLANNED}")


def check_nodes(key: str, values: Iterable[str]) -> None:
    """Refuse nodes that a label gives parts of GPUs.

    Raises:
        UnknownGpuError: it says which.
    """
    where = f"pods.gpuNodes: {key}"
    for value in values:
        if _PRODUCT.fullmatch(key):
            check_whole(value, where=where)
        for part, pattern in _LABELS.items():
            if re.fullmatch(pattern, key) and value not in {"none", "all-disabled"}:
                raise UnknownGpuError(f"{where} {value!r} asks for {part}, {_NOT_PLANNED}")


def check_resources(names: Iterable[str]) -> None:
    """Refuse what is no whole NVIDIA GPU, among the resources that a container asks for.

    Raises:
        UnknownGpuError: one of them is a part of a GPU, or another maker's.
    """
    for name in names:
        for part, pattern in _RESOURCES.items():
            if re.fullmatch(pattern, name):
                raise UnknownGpuError(
                    f"the engine's container asks for {name}, {part}, {_NOT_PLANNED}"
                )


def _why_unknown(name: str, gpus: Mapping[str, Gpu]) -> str:
    for maker, pattern in _OTHER_MAKERS.items():
        if any(re.fullmatch(pattern, word) for word in words(name)):
            return f"is made by {maker}, {_NOT_PLANNED}"
    if near := _near(name, gpus):
        unknown = _unknown_words(name, near)
        names = ", ".join(map(repr, unknown))
        verb = "is not a word" if len(unknown) == 1 else "are not words"
        reason = f"{names} {verb} of" if unknown else "its size or form is not that of"
        return (
            f"is not in the catalogue: {reason} {_listed(near)}; "
            "a class file with its figures adds it (--gpus, gpuClasses of the chart)"
        )
    digits = re.sub(r"(?<=\d)O+", lambda found: "0" * len(found[0]), name.upper())
    close = [gpu.name for gpu in boards_named(digits, gpus)]
    close = close or get_close_matches(name.upper(), gpus, n=3)
    hint = f" (did you mean {', '.join(close)}?)" if close else ""
    return f"is not in the catalogue{hint}; known: {', '.join(sorted(gpus))}: {_PLANNED}"


def _listed(boards: Iterable[Gpu]) -> str:
    return ", ".join(f"{gpu.name} ({format_bytes(gpu.memory_bytes)})" for gpu in boards)
