"""A core of this machine as a GPU class: from a probe of its memory and its products."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tonnage.api.spec import Spec
from tonnage.catalog.gpu import Gpu
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage.units import GB, GIB, TERA
from tonnage_lab.processes import LabError, run
from tonnage_lab.progress import Step, silent

NAME: Final = "CPU-core"
PRODUCT: Final = "tonnage-lab-cpu-core"
PROBE: Final = Path(__file__).parent / "cpu_probe.py"
BUFFER_BYTES: Final = GIB
"""Several times the largest caches of today: less would measure those."""
ROWS: Final = 2048
"""Of the square matrices: large enough that starting a product costs nothing."""
BOUNDS: Final = {
    "read_bytes_per_s": (0.5 * GB, TERA),
    "copy_bytes_per_s": (0.2 * GB, TERA),
    "bf16_flop_per_s": (GB, 100 * TERA),
}
"""Of one core, from emulated ones to what none has: a figure outside is a mistake of the probe."""
ROUNDS: Final = 5
ENOUGH: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreFigures:
    """What one core achieves by itself."""

    read_bytes_per_s: float
    copy_bytes_per_s: float
    """Of bytes that have arrived: each is read and written."""
    bf16_flop_per_s: float


def read_figures(text: str) -> CoreFigures:
    """Read what the probe printed.

    Raises:
        LabError: a figure is missing, or none that a core can have.
    """
    try:
        found = json.loads(text)
        values = {name: float(found[name]) for name in BOUNDS}
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"the probe of a core printed {text!r}") from error
    for name, (least, most) in BOUNDS.items():
        if not least <= values[name] <= most:
            raise LabError(
                f"the probe of a core says {name} = {values[name]:.3g}; "
                f"between {least:.3g} and {most:.3g} was to be expected"
            )
    return CoreFigures(**values)


def probe(python: Path, step: Step = silent) -> CoreFigures:
    """Measure the last core of this machine, which is the one that serves first.

    ``python``: of an environment that has torch.

    Raises:
        LabError: the probe fails, or says what cannot be.
    """
    core = max(os.sched_getaffinity(0))
    with step("measuring memory and products of one core"):
        return read_figures(run([python, "-P", PROBE, str(core), str(BUFFER_BYTES), str(ROWS)]))


def gpu_class(figures: CoreFigures, *, memory_bytes: int, num_cores: int) -> Gpu:
    """Return the class: one core is one GPU, and has no price."""
    return Gpu(
        name=NAME,
        memory_bytes=memory_bytes,
        nominal_memory_bytes=memory_bytes,
        memory_bytes_per_s=figures.read_bytes_per_s,
        peak_flop_per_s={"bf16": figures.bf16_flop_per_s},
        interconnect="pcie",
        interconnect_bytes_per_s=figures.copy_bytes_per_s,
        gpus_per_node=num_cores,
        product_labels=(PRODUCT,),
        notes="One core of this machine, measured by the lab; cores meet in memory.",
    )


def as_toml(gpu: Gpu) -> str:
    """Return a class as the file that an administrator would write."""
    figures: dict[str, Any] = {
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "nominal_memory_bytes": gpu.nominal_memory_bytes,
        "memory_bytes_per_s": gpu.memory_bytes_per_s,
        "interconnect": gpu.interconnect,
        "interconnect_bytes_per_s": gpu.interconnect_bytes_per_s,
        "gpus_per_node": gpu.gpus_per_node,
        "product_labels": list(gpu.product_labels),
        "notes": gpu.notes,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in figures.items()]
    peaks = [f"{key} = {value!r}" for key, value in gpu.peak_flop_per_s.items()]
    return "\n".join([*lines, "", "[peak_flop_per_s]", *peaks, ""])


def fitting(spec: Spec, model_config: str, gpu: Gpu, *, kv_bytes: int) -> tuple[Gpu, Sizing]:
    """Return the class with just the memory that leaves ``kv_bytes`` to the cache, and its plan.

    vLLM for CPU is told its cache and not its memory, so the total is what the plan needs beside
    the cache, which depends on the flags that it chooses, and so on the total.
    """
    for _ in range(ROUNDS):
        sizing = size(ask(spec, look_up(spec, {gpu.name: gpu}, model_config=model_config)))
        budget = sizing.budget
        missing_bytes = kv_bytes - budget.kv_pool_bytes
        if abs(missing_bytes) <= ENOUGH * kv_bytes:
            break
        memory_bytes = round(gpu.memory_bytes + missing_bytes / budget.utilization_fraction)
        gpu = replace(gpu, memory_bytes=memory_bytes, nominal_memory_bytes=memory_bytes)
    return gpu, sizing
