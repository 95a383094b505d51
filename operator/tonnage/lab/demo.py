"""The demo: an example on a real control plane, load that triples and falls, told in words."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console

from tonnage.api.objects import ModelDeployment, parse_model_deployment
from tonnage.catalog.gpu import built_in_gpus
from tonnage.cluster.kube import KubeApi, load_client
from tonnage.cluster.prometheus import Prometheus
from tonnage.explain.words import explain
from tonnage.lab import assets, controlplane, kind, site, state
from tonnage.lab.controlplane import ControlPlane
from tonnage.lab.load import LoadControl, Target, background_load
from tonnage.lab.load_client import Lengths, RequestShape
from tonnage.lab.load_endpoints import ServiceRef
from tonnage.lab.load_records import RequestRecord, attainment
from tonnage.lab.picture import draw
from tonnage.lab.processes import wait_until
from tonnage.lab.progress import Step, on_console
from tonnage.lab.runner.__main__ import obstacle
from tonnage.lab.sampler import Sources, Story, sampling
from tonnage.settings import Settings
from tonnage.sizing.plan import size
from tonnage.sizing.request import ask, look_up
from tonnage.units import format_s

SCRAPE_INTERVAL_S: Final = 5
PHASES: Final = ((45.0, 1.0, "load as expected"), (100.0, 3.0, "load triples"),
                 (90.0, 0.5, "load falls"))  # fmt: skip
"""(seconds, times the expected rate, what to call it)"""
READY_TIMEOUT_S: Final = 60.0
NOTABLE_MOVE: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The manifest of the demo, as text and as Tonnage reads it."""

    text: str
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


def read_example() -> Example:
    """Read the example that ships with Tonnage."""
    text = (assets.packaged("examples", "deploy/examples") / "demo.yaml").read_text()
    manifest = yaml.safe_load(text)
    return Example(text=text, manifest=manifest, model=parse_model_deployment(manifest))


def run_demo(
    *,
    picture: Path | None = None,
    keep: bool = False,
    cluster: str = "local",
    scrape_interval_s: int = SCRAPE_INTERVAL_S,
) -> int:
    """Run the whole demo; return an exit status: 1 when this machine cannot run it."""
    console = Console()
    if problem := obstacle():
        console.print(f"The demo cannot run here: {problem}.")
        return 1
    began_s = time.monotonic()
    example = read_example()
    _show_plan(console, example)
    step = on_console(console)
    assets.ensure(step=step)
    config = replace(site.STANDARD, scrape_interval_s=scrape_interval_s)
    with _plane(cluster, keep, step) as plane:
        url = site.start(plane, config, step=step)
        _tell_story(console, example, plane, url, picture)
        if keep:
            console.print(f"The lab stays: export KUBECONFIG={plane.kubeconfig}")
            console.print("Stop it with: tonnage lab down")
    console.print(f"Done in {format_s(time.monotonic() - began_s)}.")
    return 0


def _show_plan(console: Console, example: Example) -> None:
    """Show what arithmetic alone says: it needs no cluster."""
    spec = example.model.spec
    sizing = size(ask(spec, look_up(spec, built_in_gpus())))
    console.rule("The plan, before anything runs (tonnage plan -f deploy/examples/demo.yaml)")
    for answer in explain(sizing):
        console.print(f"[bold]{answer.question}[/bold] {answer.answer}", highlight=False)
    console.print()


@contextmanager
def _plane(cluster: str, keep: bool, step: Step) -> Iterator[ControlPlane]:
    """Start a cluster; whatever happens, nothing of it stays unless it was asked to."""
    crds = assets.packaged("crds", "crds")
    if keep:
        yield _kept(step)
        return
    with tempfile.TemporaryDirectory(prefix="tonnage-demo-") as folder:
        if cluster == "kind":
            plane = kind.start(Path(folder), crds=crds)
        else:
            plane = controlplane.start(Path(folder), crds=crds, step=step)
        try:
            yield plane
        finally:
            with step("stopping everything"):
                plane.stop()


def _kept(step: Step) -> ControlPlane:
    """Start a lab that ``tonnage lab status`` and ``down`` know."""
    planes: list[ControlPlane] = []

    def keep_plane(plane: ControlPlane, _: Step) -> Mapping[str, str]:
        planes.append(plane)
        return {}

    state.up(step, parts=(keep_plane,))
    return planes[0]


def _tell_story(
    console: Console, example: Example, plane: ControlPlane, url: str, path: Path | None
) -> None:
    kube = KubeApi(load_client(str(plane.kubeconfig)))
    model = example.model
    applied_s = time.monotonic()
    plane.kubectl("apply", "-f", "-", text=json.dumps(example.manifest))
    console.rule("kubectl apply -f deploy/examples/demo.yaml")
    wait_until(
        lambda: _is_ready(plane, model),
        what="the first replica is Ready",
        timeout_s=READY_TIMEOUT_S,
        needs={},
    )
    console.print(f"First replica Ready {format_s(time.monotonic() - applied_s)} after the apply.")
    control = LoadControl()
    sources = Sources(
        kube=kube,
        prometheus=Prometheus(Settings(prometheus_url=url)),
        namespace=model.namespace,
        name=model.name,
        control=control,
    )
    target = Target(
        kubeconfig=plane.kubeconfig,
        service=ServiceRef(namespace=model.namespace, name=model.name),
    )
    with (
        background_load(target, _shape(example), control),
        sampling(sources, _narrator(console)) as story,
    ):
        for duration_s, factor, name in PHASES:
            control.requests_per_s = factor * example.requests_per_s
            story.begin(name)
            console.print(f"[bold]{name}: {control.requests_per_s:g} requests/s[/bold]")
            time.sleep(duration_s)
    console.rule("What it came to")
    console.print(plane.kubectl("get", "mdep", "-n", model.namespace).rstrip(), highlight=False)
    _summarize(console, example, story, control.records)
    if path is not None:
        draw(
            path,
            story,
            control.records,
            limits_s=example.limits_s,
            hidden_efficiency=site.HIDDEN_EFFICIENCY,
        )
        console.print(f"Picture: {path}")


def _shape(example: Example) -> RequestShape:
    prompt, output = example.lengths
    return RequestShape(
        model=example.model.spec.model.id,
        prompt=Lengths(mean_tokens=prompt),
        output=Lengths(mean_tokens=output),
    )


def _is_ready(plane: ControlPlane, model: ModelDeployment) -> bool:
    found = plane.kubectl.get("mdep", model.name, "-n", model.namespace)
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _narrator(console: Console) -> Callable[[Story], None]:
    """Return what says each decision once, and each notable move of the learned constant."""
    told: set[str] = set()
    last = {"efficiency": 0.0}

    def tell(story: Story) -> None:
        at_s = story.samples[-1].at_s
        for decision in reversed(story.status.get("decisions") or ()):
            key = f"{decision['time']}{decision['toReplicas']}"
            if key not in told:
                told.add(key)
                change = f"{decision['fromReplicas']} -> {decision['toReplicas']} replicas"
                console.print(f"{at_s:5.0f} s  {change}: {decision['message']}", highlight=False)
        efficiency = story.samples[-1].efficiency
        if efficiency and abs(efficiency - last["efficiency"]) > NOTABLE_MOVE:
            mbu = story.samples[-1].mbu
            seen = f", observed MBU {mbu:.0%}" if mbu else ""
            console.print(
                f"{at_s:5.0f} s  bandwidth efficiency believed: {efficiency:.2f}{seen}",
                highlight=False,
            )
            last["efficiency"] = efficiency

    return tell


def _summarize(
    console: Console, example: Example, story: Story, records: list[RequestRecord]
) -> None:
    ttft_s, tpot_s = example.limits_s
    ends = [at_s for at_s, _ in story.phases[1:]] + [float("inf")]
    for (from_s, name), to_s in zip(story.phases, ends, strict=True):
        share = attainment(
            records,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            since_s=story.began_s + from_s,
            until_s=story.began_s + to_s,
        )
        kept = "no request" if share is None else f"{share:.1%} of requests met both SLO targets"
        console.print(f"{name:18} {kept}", highlight=False)
    efficiencies = [each.efficiency for each in story.samples if each.efficiency]
    if efficiencies:
        console.print(
            f"bandwidth efficiency: first {efficiencies[0]:.3f}, learned {efficiencies[-1]:.3f}, "
            f"hidden in the engines {site.HIDDEN_EFFICIENCY:.3f}",
            highlight=False,
        )
