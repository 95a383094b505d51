"""How fast is a replay: requests per second for a synthetic day, and where the time goes.

    python tests/bench/replay_speed.py [--hours 24] [--requests-per-s 11.6] [--routing Service]
    python tests/bench/replay_speed.py --engine python --hours 2

One object under the operator's own tick, its sizing and its learner included, from nothing known:
a rate that rises and falls by a share of its mean once a day, prompts of 1,500 tokens and outputs
of 1,000 in the mean, a tick every 15 s and as often a scrape of each of two to ten replicas.

``traffic`` draws the requests; ``engines`` is the engine model and its router, ``pages`` what
engines say, ``kept`` what Prometheus does with that; ``asked`` is what a tick asks it, ``joined``
the samples that become of it, and ``ticks`` the operator, of which questions to sizing are a part,
and of these the searches for what the last tick had not asked. The rest is the loop, the views of
the cluster and the records. Parts are in seconds of this process, so that others on the machine
matter less. ``--engine python`` is the engine uncompiled.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from tonnage.units import DAY_S, HOUR_S, MS_PER_S

NESTED = ("asked of sizing", "searched")
"""Parts of another part."""


@dataclass(slots=True)
class Stopwatch:
    """CPU time by part."""

    spent_s: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def timing(self, *watched: tuple[str, Any, str]) -> Iterator[None]:
        """Count the time of what is called meanwhile: (part, its owner, its name)."""
        before = [(owner, name, getattr(owner, name)) for _, owner, name in watched]
        for part, owner, name in watched:
            setattr(owner, name, self._timed(part, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def _timed(self, part: str, function: Callable) -> Callable:
        self.spent_s[part], self.calls[part] = 0.0, 0

        def timed(*args: Any, **named: Any) -> Any:
            began_s = time.process_time()
            try:
                return function(*args, **named)
            finally:
                self.spent_s[part] += time.process_time() - began_s
                self.calls[part] += 1

        return timed


def manifest(mean: float, routing: str) -> dict:
    return {
        "apiVersion": "tonnage.dev/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "served", "namespace": "serving", "uid": "uid-of-served",
                     "generation": 1},
        "spec": {
            "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
            "hardware": {"gpu": "H100", "gpusPerReplica": 1},
            "contextLength": 16_384,
            "slo": {"timeToFirstToken": {"p95": "2s"}, "timePerOutputToken": {"p95": "40ms"}},
            "demand": {
                "requestsPerSecond": f"{mean:.4f}",
                "promptTokens": {"mean": 1500, "p99": 4000},
                "outputTokens": {"mean": 1000},
            },
            "scaling": {"minReplicas": 1, "maxReplicas": 64, "routing": routing},
            "engine": {"version": "0.33"},
        },
    }  # fmt: skip


def user_of(function: Callable) -> Any:
    """Return the module of the replay that has imported a function."""
    modules = [module for name, module in sys.modules.items() if name.startswith("tonnage.replay.")]
    return next(module for module in modules if vars(module).get(function.__name__) is function)


def replayed(watch: Stopwatch, *, hours: float, mean: float, swing: float, routing: str):
    """Replay a part of the day, and return what it tells."""
    # Imported here: which engine is loaded was just chosen.
    from tonnage.api.objects import parse_model_deployment  # noqa: PLC0415
    from tonnage.control.input.answers import Asker  # noqa: PLC0415
    from tonnage.control.tick import tick  # noqa: PLC0415
    from tonnage.estimate.joined import join  # noqa: PLC0415
    from tonnage.replay.cluster import SimulatedCluster  # noqa: PLC0415
    from tonnage.replay.counters import EngineCounters  # noqa: PLC0415
    from tonnage.replay.prometheus import SimulatedPrometheus  # noqa: PLC0415
    from tonnage.replay.record import ReplayedModel  # noqa: PLC0415
    from tonnage.replay.simulation import Simulation  # noqa: PLC0415
    from tonnage.replay.traffic import TrafficSource, diurnal, traffic  # noqa: PLC0415
    from tonnage.settings import Settings  # noqa: PLC0415
    from tonnage.sizing.expected import expected_workload  # noqa: PLC0415

    model = parse_model_deployment(manifest(mean, routing))
    duration_s = hours * HOUR_S
    source = TrafficSource(
        rate=diurnal(mean, swing=swing, period_s=DAY_S),
        shapes=[(0.0, expected_workload(model.spec))],
    )
    began_s = time.process_time()
    drawn = traffic(source, duration_s=duration_s, context_tokens=model.spec.context_length)
    watch.spent_s["traffic"] = time.process_time() - began_s
    settings = Settings(prometheus_url="http://prometheus.test:9090")
    loop = Simulation([ReplayedModel(model=model, traffic=drawn)], settings=settings)
    with watch.timing(
        ("engines", SimulatedCluster, "dispatch"),
        ("pages", EngineCounters, "page"),
        ("kept", SimulatedPrometheus, "take"),
        ("asked", SimulatedPrometheus, "ask"),
        ("joined", user_of(join), "join"),
        ("ticks", user_of(tick), "tick"),
        ("asked of sizing", Asker, "size"),
        ("searched", Asker, "_search"),
    ):
        (record,) = loop.run(duration_s)
    return record


def report(
    record: Any, watch: Stopwatch, wall_s: float, cpu_s: float, duration_s: float
) -> Iterator[str]:
    from slo_shares import slo_shares  # noqa: PLC0415

    num_requests = record.served.traffic.num_requests
    ready = [moment.ready for moment in record.moments if moment.at_s >= 0]
    yield (
        f"{num_requests} requests of {duration_s / HOUR_S:.1f} h in {wall_s:.1f} s, "
        f"{num_requests / wall_s:.0f} requests/s; {cpu_s:.1f} s of CPU, "
        f"{num_requests / cpu_s:.0f} requests/s"
    )
    yield (
        f"{sum(ready) / len(ready):.1f} replicas in the mean, {max(ready)} at most; late requests "
        f"over those allowed: {slo_shares(record, 0, duration_s).worst_ratio:.2f}"
    )
    rest_s = cpu_s - sum(s for part, s in watch.spent_s.items() if part not in NESTED)
    for part, spent_s in {**watch.spent_s, "rest": rest_s}.items():
        calls = watch.calls.get(part)
        each = f"{calls:9} x {MS_PER_S * spent_s / calls:8.3f} ms" if calls else ""
        indent = "  " if part in NESTED else ""
        yield f"{indent + part:18} {spent_s:7.2f} s {each}"


@click.command()
@click.option("--hours", type=float, default=24.0, show_default=True)
@click.option("--requests-per-s", type=float, default=11.6, show_default=True, help="In the mean.")
@click.option("--swing", type=float, default=0.6, show_default=True, help="Share of the mean.")
@click.option("--routing", type=click.Choice(["Service", "LeastOutstanding"]), default="Service")
@click.option("--engine", type=click.Choice(["compiled", "python"]), default="compiled")
def main(hours: float, requests_per_s: float, swing: float, routing: str, engine: str) -> None:
    if engine == "python":
        from uncompiled import prefer_sources  # noqa: PLC0415

        prefer_sources()
    watch, began_s, began_cpu_s = Stopwatch(), time.perf_counter(), time.process_time()
    record = replayed(watch, hours=hours, mean=requests_per_s, swing=swing, routing=routing)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    for line in report(record, watch, wall_s, cpu_s, hours * HOUR_S):
        click.echo(line)


if __name__ == "__main__":
    main()
