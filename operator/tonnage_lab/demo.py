"""The demo: an example on a real control plane, load that triples and falls, told in words."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from tonnage.cluster.kube import KubeApi, load_client
from tonnage.explain.words import explain
from tonnage.settings import Settings
from tonnage.units import format_s
from tonnage_lab import assets, controlplane, site, state
from tonnage_lab.controlplane import ControlPlane
from tonnage_lab.kind import cluster as kind_cluster
from tonnage_lab.kind import site as kind_site
from tonnage_lab.kubectl import is_true
from tonnage_lab.load import LoadControl, LoadTarget, background_load
from tonnage_lab.load_client import LengthDistribution, RequestRecord, RequestShape, attainment
from tonnage_lab.load_endpoints import ServiceRef
from tonnage_lab.processes import wait_until
from tonnage_lab.progress import Step, on_console
from tonnage_lab.runner.__main__ import obstacle
from tonnage_lab.sampler import Sources, Story, StorySample, ask_now, draw, sampling
from tonnage_lab.scenario import EngineKind, Example, Stage, set_up
from tonnage_lab.site import SiteConfig

SCRAPE_INTERVAL_S: Final = 5
NOTABLE_MOVE: Final = 0.05
CACHE: Final = "vllm:cache_config_info"
PROGRAMS: Final = {
    "local": (*controlplane.PROGRAMS, "helm", "prometheus"),
    "kind": ("kubectl", "helm", "prometheus"),
}
"""What the demo starts, by the cluster that it runs on: whatever is missing is made first."""


def run_demo(
    *,
    picture: Path | None = None,
    keep: bool = False,
    cluster: str = "local",
    scrape_interval_s: int = SCRAPE_INTERVAL_S,
    engine: EngineKind = EngineKind.EMULATOR,
) -> int:
    """Run the whole demo; return an exit status: 1 when this machine cannot run it."""
    console = Console()
    on_kind = cluster == "kind"
    if problem := kind_cluster.obstacle() if on_kind else obstacle():
        console.print(f"The demo cannot run here: {problem}.")
        return 1
    began_s = time.monotonic()
    step = on_console(console)
    stage = set_up(engine, step)
    _show_plan(console, stage)
    assets.ensure(PROGRAMS[cluster], step=step)
    config = replace(stage.config, scrape_interval_s=scrape_interval_s)
    with _on_kind(config, step) if on_kind else _on_processes(config, step, keep=keep) as made:
        plane, url = made
        _tell_story(console, stage, plane, url, picture)
        if keep and not on_kind:
            console.print(f"The lab stays: export KUBECONFIG={plane.kubeconfig}")
            console.print("Stop it with: python -m tonnage_lab down")
    console.print(f"Done in {format_s(time.monotonic() - began_s)}.")
    return 0


def _show_plan(console: Console, stage: Stage) -> None:
    """Show what arithmetic alone says: it needs no cluster."""
    console.rule(f"The plan, before anything runs ({stage.plan_command})")
    for answer in explain(stage.sizing):
        console.print(f"[bold]{answer.question}[/bold] {answer.answer}", highlight=False)
    console.print()


@contextmanager
def _on_kind(config: SiteConfig, step: Step) -> Iterator[tuple[ControlPlane, str]]:
    with kind_site.running_site(config, assets.of_checkout("crds"), step=step) as (made, url):
        yield made.plane, url


@contextmanager
def _on_processes(
    config: SiteConfig, step: Step, *, keep: bool
) -> Iterator[tuple[ControlPlane, str]]:
    """Start the lab; whatever happens, nothing of it stays unless it was asked to."""
    if keep:
        plane = _start_lab(step)
        yield plane, site.start(plane, config, step=step)
        return
    with tempfile.TemporaryDirectory(prefix="tonnage-demo-") as folder:
        plane = controlplane.start(Path(folder), crds=assets.of_checkout("crds"), step=step)
        try:
            yield plane, site.start(plane, config, step=step)
        finally:
            with step("stopping everything"):
                plane.stop()


def _start_lab(step: Step) -> ControlPlane:
    """Start a lab that ``python -m tonnage_lab status`` and ``down`` know."""
    planes: list[ControlPlane] = []

    def keep_plane(plane: ControlPlane, _: Step) -> Mapping[str, str]:
        planes.append(plane)
        return {}

    state.up(step, parts=(keep_plane,))
    return planes[0]


def _tell_story(
    console: Console, stage: Stage, plane: ControlPlane, url: str, path: Path | None
) -> None:
    kube = KubeApi(load_client(str(plane.kubeconfig)))
    example = stage.example
    model = example.model
    applied_s = time.monotonic()
    for manifest in (*stage.beside, example.manifest):
        plane.kubectl("apply", "-f", "-", text=json.dumps(manifest))
    console.rule(f"kubectl apply: {model.name}")
    wait_until(
        lambda: is_true(plane.kubectl.get("mdep", model.name, "-n", model.namespace), "Ready"),
        what="the first replica is Ready",
        timeout_s=stage.ready_timeout_s,
    )
    console.print(f"First replica Ready {format_s(time.monotonic() - applied_s)} after the apply.")
    control = LoadControl()
    sources = Sources(
        kube=kube,
        settings=Settings(prometheus_url=url),
        namespace=model.namespace,
        name=model.name,
        control=control,
    )
    target = LoadTarget(
        kubeconfig=plane.kubeconfig,
        service=ServiceRef(namespace=model.namespace, name=model.name),
    )
    with (
        background_load(target, _shape(example), control),
        sampling(sources, _narrator(console)) as story,
    ):
        for duration_s, factor, name in stage.phases:
            control.requests_per_s = factor * example.requests_per_s
            story.begin(name)
            console.print(f"[bold]{name}: {control.requests_per_s:g} requests/s[/bold]")
            time.sleep(duration_s)
    console.rule("What it came to")
    console.print(plane.kubectl("get", "mdep", "-n", model.namespace).rstrip(), highlight=False)
    _summarize(console, stage, story, control.records)
    _compare_cache(console, stage, sources.settings)
    if path is not None:
        draw(
            path,
            story,
            control.records,
            limits_s=example.limits_s,
            hidden_efficiency=stage.hidden_efficiency,
        )
        console.print(f"Picture: {path}")


def _shape(example: Example) -> RequestShape:
    prompt, output = example.lengths
    return RequestShape(
        model=example.model.spec.model.id,
        prompt=LengthDistribution(mean_tokens=prompt),
        output=LengthDistribution(mean_tokens=output),
    )


def _narrator(console: Console) -> Callable[[Story], None]:
    """Return what says each decision once, and each notable move of what was learned."""
    told: set[str] = set()
    last = {"ratio": 1.0}

    def tell(story: Story) -> None:
        at_s = story.samples[-1].at_s
        for decision in reversed(story.status.get("decisions") or ()):
            key = f"{decision['time']}{decision['toReplicas']}"
            if key not in told:
                told.add(key)
                change = f"{decision['fromReplicas']} -> {decision['toReplicas']} replicas"
                console.print(f"{at_s:5.0f} s  {change}: {decision['message']}", highlight=False)
        ratio = story.samples[-1].step_ratio
        if ratio and abs(ratio - last["ratio"]) > NOTABLE_MOVE:
            console.print(
                f"{at_s:5.0f} s  {_belief_text(story.samples[-1], ratio)}", highlight=False
            )
            last["ratio"] = ratio

    return tell


def _belief_text(sample: StorySample, ratio: float) -> str:
    """Say how long a step is taken to be, and what that rests on."""
    parts = [f"a step is believed to take {ratio:.2f} times as long as the prior says"]
    if sample.efficiency:
        parts.append(f"bandwidth efficiency {sample.efficiency:.2f}")
    if sample.mbu:
        parts.append(f"observed MBU {sample.mbu:.0%}")
    return ", ".join(parts)


def _summarize(console: Console, stage: Stage, story: Story, records: list[RequestRecord]) -> None:
    ttft_s, tpot_s = stage.example.limits_s
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
    num_failed = sum(not each.is_complete for each in records)
    console.print(f"{num_failed} of {len(records)} requests failed", highlight=False)
    efficiencies = [each.efficiency for each in story.samples if each.efficiency]
    if efficiencies:
        hidden = stage.hidden_efficiency
        truth = "" if hidden is None else f", hidden in the engines {hidden:.3f}"
        console.print(
            f"bandwidth efficiency: first {efficiencies[0]:.3f}, learned {efficiencies[-1]:.3f}"
            f"{truth}",
            highlight=False,
        )


def _compare_cache(console: Console, stage: Stage, settings: Settings) -> None:
    """Show the KV tokens of the plan, made before any engine ran, beside what engines report."""
    reported = {labels.get("kv_cache_size_tokens") for labels, _ in ask_now(settings, CACHE)}
    said = ", ".join(sorted(each for each in reported if each)) or "nothing"
    console.print(
        f"KV tokens of a replica: {stage.sizing.kv_tokens:.0f} planned, {said} reported",
        highlight=False,
    )
