"""What a demo plays: its example, its engines, and the load that they get."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import yaml

from tonnage.api.objects import ModelDeployment, parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.sizing.plan import Sizing
from tonnage.sizing.request import ask, look_up
from tonnage.sizing.search import size
from tonnage_lab import assets, site, vllm_site
from tonnage_lab.progress import Step
from tonnage_lab.site import SiteConfig

Phase = tuple[float, float, str]
"""(seconds, times the expected rate, what to call it)"""
PHASES: Final = ((45.0, 1.0, "load as expected"), (100.0, 3.0, "load triples"),
                 (90.0, 0.5, "load falls"))  # fmt: skip
REAL_PHASES: Final = ((120.0, 1.0, "load as expected"), (240.0, 3.0, "load triples"),
                      (180.0, 0.5, "load falls"))  # fmt: skip
"""A real engine on a core answers about one request per second, and needs a minute to start."""


class EngineKind(StrEnum):
    """What answers requests."""

    EMULATOR = "emulator"
    VLLM = "vllm"
    """vLLM for CPU: over 6 GB of packages, installed once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The manifest of a demo, as Kubernetes and as Tonnage read it."""

    manifest: Mapping[str, Any]
    model: ModelDeployment

    @property
    def limits_s(self) -> tuple[float, float]:
        """The SLO targets on TTFT and TPOT at p95."""
        slo = self.model.spec.slo
        if slo is None or slo.time_to_first_token is None or slo.time_per_output_token is None:
            return float("inf"), float("inf")
        first, each = slo.time_to_first_token.targets(), slo.time_per_output_token.targets()
        return first[0.95], each[0.95]

    @property
    def lengths(self) -> tuple[float, float]:
        """Mean prompt and output tokens."""
        demand = self.model.spec.demand
        if demand is None:
            raise ValueError("the example must have spec.demand")
        return demand.prompt_tokens.mean, demand.output_tokens.mean

    @property
    def requests_per_s(self) -> float:
        demand = self.model.spec.demand
        return float(demand.requests_per_second or 1) if demand else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything that one demo differs in from another."""

    example: Example
    sizing: Sizing
    """What arithmetic alone says of the example."""
    config: SiteConfig
    phases: tuple[Phase, ...]
    ready_timeout_s: float
    plan_command: str
    """How a user gets the same plan."""
    beside: tuple[Mapping[str, Any], ...] = ()
    """Manifests that the example refers to."""
    hidden_efficiency: float | None = None
    """Of the engines, where somebody knows it."""


def set_up(engine: EngineKind, step: Step) -> Stage:
    """Return the stage for engines of a kind, installed and measured where that is needed.

    Raises:
        LabError: this machine cannot run them.
    """
    return _real(step) if engine is EngineKind.VLLM else _emulated_stage()


def _example(manifest: Mapping[str, Any]) -> Example:
    return Example(manifest=manifest, model=parse_model_deployment(dict(manifest)))


def _emulated_stage() -> Stage:
    text = (assets.of_checkout("deploy/examples") / "demo.yaml").read_text()
    example = _example(yaml.safe_load(text))
    spec = example.model.spec
    return Stage(
        example=example,
        sizing=size(ask(spec, look_up(spec, built_in_gpus()))),
        config=site.STANDARD,
        phases=PHASES,
        ready_timeout_s=60.0,
        plan_command="tonnage plan -f deploy/examples/demo.yaml",
        hidden_efficiency=site.HIDDEN_EFFICIENCY,
    )


def _real(step: Step) -> Stage:
    real = vllm_site.prepare(step)
    return Stage(
        example=_example(real.manifest),
        sizing=real.sizing,
        config=real.config,
        phases=REAL_PHASES,
        ready_timeout_s=900.0,
        plan_command="a core of this machine as the GPU class",
        beside=(real.model_config_map,),
    )
