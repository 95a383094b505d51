"""Which boards a name may mean: classes, their aliases, node labels, and what logs print."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tonnage.units import GB

if TYPE_CHECKING:
    from tonnage.catalog.gpu import Gpu

_NOISE: Final = frozenset(
    {"blackwell", "edition", "generation", "geforce", "gpu", "graphics", "hbm2", "hbm2e", "hbm3",
     "hbm3e", "nvidia", "server", "tesla"}
)  # fmt: skip
"""Words that tell no board of the catalogue from another."""
_FORMS: Final = frozenset({"nvl", "pcie", "sxm"})
_VARIANTS: Final = frozenset({"d", "laptop", "mobile", "super", "ti"})
"""Words that make another board of a model, often with other memory."""
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
    asked = words(name)
    fitting = [gpu for gpu in gpus.values() if _is_model(gpu, asked)]
    most = max((len(_model(gpu)) for gpu in fitting), default=0)
    return tuple(gpu for gpu in fitting if len(_model(gpu)) == most)


def _is_model(gpu: "Gpu", asked: frozenset[str]) -> bool:
    return _model(gpu) <= asked and asked & _VARIANTS <= _model(gpu)


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
