"""What a tenant can do to the operator and to others: each attack again, in figures, and the page.

    python tests/bench/attacks.py [--only NAME] [--page]

The whole loop runs, over an API server in memory; floods of series come over HTTP from another
process. Every measurement has a process of its own, so that memory is its own. What an attack did
before is quoted from the review that found it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from measured import write_page

from family_configs import LLAMA_3_1_8B
from fleet_builders import (
    NOW_S,
    a_deployment_body,
    a_manifest,
    a_model,
    a_pod_body,
    a_replica_set_body,
    owned_by,
)
from http_double import Asked, Reply, a_kubeconfig, json_reply, serving
from kube_double import KubeDouble
from loop_builders import SETTINGS, a_loop, a_loop_asking, a_world, replicas_of, show
from loop_story import EACH, PLACE, Story
from page_builders import labels_of
from query_api import QueryApi, compact
from tonnage.api.pod_rules import MOST_BYTES
from tonnage.cluster.kube import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    MODEL_DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    KubeApi,
    load_client,
)
from tonnage.cluster.prometheus import Prometheus
from tonnage.fleet.loop import Loop
from tonnage.fleet.store import Kind, Store
from tonnage.manifests.children import MOST_SAMPLES
from tonnage.redaction import redacted
from tonnage.units import KIB, MIB

PAGE = Path(__file__).with_name("attacks.md")
MANAGED = {"tonnage.dev/managed": "true"}
GROWTH_PER_S = -1e6
LONG_TICKS = 40
NUM_READERS = 150
NUM_ASKERS = 60
FLOOD_TICKS = 3
Figures = dict[str, str]
"""What is told of an attack, by what it is."""


def memory_mib(name: str) -> float:
    """Return ``VmRSS``, as it is now, or ``VmHWM``, as it was at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * KIB / MIB for line in lines if line.startswith(name))


# A ReplicaSet elsewhere that names a victim's Deployment as its owner


def lies(world: object, namespace: str) -> Callable[[str], list]:
    """Return what Prometheus says with a pod whose backlog falls beside the others."""
    honest = world.ask

    def ask(text: str) -> list:
        pod, at_s = (namespace, "forged"), world.now_s - 5
        shrinking = {"running": 0, "waiting": 0, "completed": 0}
        lies = [(labels_of(name, pod), [(at_s, float(value))]) for name, value in shrinking.items()]
        backlog = max(0.0, 1e6 + GROWTH_PER_S * (world.now_s % 86_400))
        return [*honest(text), *lies, (labels_of("queued", pod), [(at_s, backlog)])]

    return ask


def forge(story: Story, namespace: str) -> None:
    """Put a pod and its ReplicaSet up that name the victim's Deployment."""
    owner = owned_by("Deployment", "llama", story.objects[PLACE]["metadata"]["uid"])
    held = {"name": "forged", "namespace": namespace, "uid": "uid-of-forged", "labels": MANAGED}
    metadata = held | {"ownerReferences": owner, "finalizers": ["attacker.example/held"]}
    story.world.kube.put(REPLICA_SETS.path(namespace, "forged"), {"metadata": metadata})
    pod = a_pod_body("forged")
    pod["metadata"] |= held | {"ownerReferences": owned_by("ReplicaSet", "forged", held["uid"])}
    story.world.kube.put(PODS.path(namespace, "forged"), pod)


def least_replicas(attack: Callable[[Story], None]) -> str:
    """Return the victim's replicas, and the fewest of forty minutes from an attack on."""
    story = Story(load=3.6, scaling={"minReplicas": 1, "maxReplicas": 8})
    story.tick(8)
    before = replicas_of(story.world)
    attack(story)
    found = []
    for _ in range(LONG_TICKS):
        story.tick()
        found.append(replicas_of(story.world))
    return f"{before}, never below {min(found)}"


def liar_in(namespace: str) -> Callable[[Story], None]:
    return lambda story: lie_from(story, namespace)


def lie_from(story: Story, namespace: str) -> None:
    forge(story, namespace)
    story.world.ask = lies(story.world, namespace)
    remembered = story.loop.memory
    story.begin()
    story.loop.memory = remembered


def own_pod(story: Story) -> None:
    story.world.figures["llama-0"] = {"queued": 0, "running": 0}


def forged_owner() -> Figures:
    return {
        "nobody attacks": least_replicas(lambda story: None),
        "ReplicaSet and pod of another namespace": least_replicas(liar_in("attacker")),
        "of its own namespace, where they join": least_replicas(liar_in("serving")),
        "one of its own pods says so": least_replicas(own_pod),
    }


# A ConfigMap that many objects name


class FreshDouble(KubeDouble):
    """Gives text of its own with each read, as a connection does."""

    def get(self, path: str) -> dict | None:
        return json.loads(json.dumps(super().get(path)))


def a_config(num_bytes: int) -> str:
    """Return a config.json of so many bytes, most of them names of labels."""
    left = num_bytes - len(json.dumps(LLAMA_3_1_8B | {"id2label": {}}))
    item = len('"00000": "LABEL_00000", ')
    labels = {f"{number:05}": f"LABEL_{number:05}" for number in range(left // item)}
    return json.dumps(LLAMA_3_1_8B | {"id2label": labels}) if labels else json.dumps(LLAMA_3_1_8B)


def readers(num_bytes: int | None) -> Figures:
    """Have 150 objects name one ConfigMap; None: a model of the catalogue, and no ConfigMap."""
    source = {"configMapKeyRef": {"name": "large", "key": "config.json"}}
    model = {"model": {"id": "example/large", "config": source}} if num_bytes else {}
    world = a_world(
        *(
            a_manifest(f"m{number:03}", scaling={"mode": "Recommend", "maxReplicas": 2}, **model)
            for number in range(NUM_READERS)
        )
    )
    world.kube = FreshDouble(world.kube.objects.items())
    if num_bytes:
        body = {"metadata": {}, "data": {"config.json": a_config(num_bytes)}}
        world.kube.put(CONFIG_MAPS.path("serving", "large"), body)
    name = f"{num_bytes // KIB} KiB" if num_bytes else "no ConfigMap"
    return {name: in_four_ticks(world)}


def templates(num_bytes: int) -> Figures:
    """Have 150 objects with pod templates of so many bytes, all different, that Tonnage runs."""

    def pods(number: int) -> dict[str, object]:
        annotations = {"example.test/number": str(number), "example.test/text": ""}
        template = {"metadata": {"annotations": annotations}}
        annotations["example.test/text"] = "x" * (num_bytes - len(json.dumps(template)))
        return {"template": template}

    world = a_world(
        *(
            a_manifest(f"m{number:03}", pods=pods(number) if num_bytes else {})
            for number in range(NUM_READERS)
        )
    )
    name = f"{num_bytes // KIB} KiB" if num_bytes else "no template"
    return {name: in_four_ticks(world, pod_templates=True)}


def in_four_ticks(world: object, **settings: object) -> str:
    """Return what a new operator takes for what is there."""
    loop = a_loop(world, **settings)
    show(loop, world)
    before, took_s = memory_mib("VmRSS"), []
    for _ in range(4):
        world.now_s += 15
        took_s.append(timed(loop.tick))
        show(loop, world)
    return f"{memory_mib('VmHWM') - before:.0f} MiB more at most, slowest tick {max(took_s):.1f} s"


def timed(run: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    run()
    return time.perf_counter() - began_s


# Labels of engines that do not exist


@dataclass(kw_only=True)
class Flooded(QueryApi):
    """A Prometheus that scraped a pod with ever so many invented engines."""

    flood: bytes = b""

    def reply(self, name: str, namespaces: tuple[str, ...] = (), **more: object) -> Reply:
        whole = super().reply(name, namespaces, **more).body
        if namespaces and LIAR[0] not in namespaces:
            return Reply(body=whole)
        head, mark, tail = whole.partition(b'"result":[')
        comma = b"," if self.flood and not tail.startswith(b"]") else b""
        return Reply(body=head + mark + self.flood + comma + tail)


LIAR, VICTIM = ("blue", "llama-0"), ("green", "mixtral-0")
FLOOD_OBJECTS = (("blue", "llama"), ("green", "mixtral"))


def flood_of(number: int) -> bytes:
    metric = {"namespace": LIAR[0], "pod": LIAR[1], "engine": "%d", "le": "1.0"}
    item = compact({"metric": metric, "values": [[NOW_S, "1"]]}).encode()
    return b",".join(item % engine for engine in range(1, number + 1))


def served_objects() -> Iterator[tuple[str, dict]]:
    for namespace, name in FLOOD_OBJECTS:
        model = a_model(name, namespace=namespace)
        pod = a_pod_body(f"{name}-0", model=model)
        owner, live = a_replica_set_body(model), a_deployment_body(model, replicas=1)
        for each in (pod, owner, live):
            each["metadata"].setdefault("labels", {}).update(MANAGED)
            each["metadata"]["namespace"] = namespace
        yield MODEL_DEPLOYMENTS.path(namespace, name), a_manifest(name, namespace=namespace)
        yield DEPLOYMENTS.path(namespace, name), live
        yield REPLICA_SETS.path(namespace, owner["metadata"]["name"]), owner
        yield PODS.path(namespace, f"{name}-0"), pod


def flooded(number: int) -> Figures:
    """Serve the flood here, and run the loop in a process that asks for it."""
    pods = dict.fromkeys((LIAR, VICTIM), 0.5)
    with serving(Flooded(completions_per_s=pods, flood=flood_of(number))) as server:
        return {f"{number:,} engines": measured("flood", server.url)}


def refused() -> Figures:
    """What the flood comes to where a scrape of so much fails: the pod is silent."""
    with serving(QueryApi(completions_per_s={VICTIM: 0.5})) as server:
        return {f"sampleLimit {MOST_SAMPLES:,}": measured("flood", server.url)}


def under_flood(url: str) -> str:
    world = a_world()
    world.kube = KubeDouble(served_objects())
    settings = {"prometheus_url": url}
    ask = Prometheus(SETTINGS.model_copy(update=settings), now=lambda: world.now_s).ask
    loop = a_loop_asking(ask, world, **settings)
    show(loop, world)
    before, took_s, measured_in = memory_mib("VmRSS"), [], {"blue": 0, "green": 0}
    for _ in range(FLOOD_TICKS):
        world.now_s += 15
        found, seconds = ticked(loop)
        took_s.append(seconds)
        show(loop, world)
        for namespace, is_measured in found.items():
            measured_in[namespace] += is_measured
    return (
        f"{memory_mib('VmHWM') - before:.0f} MiB more at most, slowest tick {max(took_s):.1f} s, "
        f"then {took_s[-1]:.1f} s; measured in {measured_in['blue']} of {FLOOD_TICKS} ticks, "
        f"another namespace's object in {measured_in['green']}"
    )


def ticked(loop: Loop) -> tuple[Mapping[str, bool], float]:
    """Tick; return whether each namespace's demand was measured, and for how long it took."""
    began_s = time.perf_counter()
    found = loop.tick()
    took_s = time.perf_counter() - began_s
    return {
        each.state.view.namespace: each.traffics is not None and each.traffics.demand is not None
        for each in found
    }, took_s


# Questions without end


def askers() -> Figures:
    """Let one user ask sixty questions while somebody sets another's replicas to one."""
    story = Story(load=3.6, scaling={"minReplicas": 1, "maxReplicas": 8})
    story.tick(8)
    wanted, kube = replicas_of(story.world), story.world.kube
    for number in range(NUM_ASKERS):
        name = f"asker-{number:02}"
        demand = {
            "requestsPerSecond": 1,
            "promptTokens": {"mean": 700 + 100 * number},
            "outputTokens": {"mean": 300 + 10 * number},
        }
        scaling = {"mode": "Recommend", "maxReplicas": 8}
        body = a_manifest(name, namespace="crowd", demand=demand, scaling=scaling)
        kube.put(MODEL_DEPLOYMENTS.path("crowd", name), body)
    live = kube.objects[PLACE]
    kube.put(PLACE, live | {"spec": live["spec"] | {"replicas": 1}})
    rates = story.world.completions_per_s
    story.world.completions_per_s = dict.fromkeys(rates, 3.6 * EACH / len(rates))
    took_s, corrected_s, planned = [], None, 0
    while planned < NUM_ASKERS and len(took_s) < LONG_TICKS:
        story.world.now_s += 15
        show(story.loop, story.world)
        took_s.append(timed(story.loop.tick))
        if corrected_s is None and replicas_of(story.world) == wanted:
            corrected_s = sum(took_s)
        bodies = (b for p, b in kube.objects.items() if "/crowd/modeldeployments/" in p)
        planned = sum("plan" in (body.get("status") or {}) for body in bodies)
    corrected = "never" if corrected_s is None else f"after {corrected_s:.1f} s of ticks"
    return {
        f"{NUM_ASKERS} objects": f"slowest tick {max(took_s):.1f} s; all planned after "
        f"{len(took_s)} ticks, {sum(took_s):.0f} s; another's replicas corrected {corrected}"
    }


# Objects that are as large as the API server takes them


LARGE_MODELS = 100
LARGE_BYTES = 1_300_000
LARGE = {
    "finalizers": [f"example.test/{each:050}" for each in range(LARGE_BYTES // 66)],
    "ownerReferences": [{"uid": f"{each:020000}"} for each in range(LARGE_BYTES // 20_100)],
    "managedFields": [{"fieldsV1": {f"f:{each:060}": {} for each in range(LARGE_BYTES // 68)}}],
    "labels": {f"example.test/{each:050}": "x" * 60 for each in range(LARGE_BYTES // 131)},
    "annotations": {"note": "x" * LARGE_BYTES},
}
"""What of the metadata is large."""


def large_models(field: str) -> Figures:
    """Serve a hundred here, and list them in a process of its own."""

    def answer(asked: Asked) -> Reply:
        first, limit = int(asked.query.get("continue", "0")), int(asked.query["limit"])
        numbers = range(first, min(first + limit, LARGE_MODELS))
        bodies = [a_large_model(number, field) for number in numbers]
        more = {"continue": str(numbers.stop)} if numbers.stop < LARGE_MODELS else {}
        return json_reply({"metadata": more, "items": bodies})

    with serving(answer) as server:
        return {field: measured("large", server.url)}


def a_large_model(number: int, field: str) -> dict:
    body = a_manifest(f"m{number:03}", namespace="crowd")
    body["metadata"][field] = LARGE[field]
    return body


def listed(url: str) -> str:
    """Read the list into the store, as the loop does."""
    with TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        kubeconfig.write_text(a_kubeconfig(url))
        kube = KubeApi(load_client(str(kubeconfig)))
    store, before = Store(), memory_mib("VmRSS")
    path = MODEL_DEPLOYMENTS.path(None)
    took_s = timed(lambda: store.reconcile(Kind.MODEL, kube.list(path)))
    large = sum(each.is_oversized for each in store.snapshot().models.values())
    most = memory_mib("VmHWM") - before
    return f"{large} known by name, {most:.0f} MiB more at most, {took_s:.1f} s"


# Text of others


TEXTS = {
    "one character": "a",
    "password and a blank": "password ",
    "quotes": '"',
    "distinct words": "".join(f"{number:x} " for number in range(200_000)),
}


def texts() -> Figures:
    """Take what may be a secret out of 1 MB of text, in lines of 1,000 characters."""
    found = {}
    for name, piece in TEXTS.items():
        text = (piece * (MIB // len(piece) + 1))[:MIB]
        lines = "\n".join(text[start : start + 1000] for start in range(0, MIB, 1000))
        found[name] = f"{timed(lambda lines=lines: redacted(lines)):.2f} s"
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What somebody does, what came of it once, and how it is measured now."""

    text: str
    before: str
    measure: Callable[[], Figures]


ATTACKS = {
    "forged": Attack(
        text="a ReplicaSet elsewhere names a loaded victim's Deployment as its owner; its "
        "pod reports a growth of -1e6 requests/s",
        before="the victim's replicas walked from 4 to 1",
        measure=forged_owner,
    ),
    "config-none": Attack(
        text=f"{NUM_READERS} objects, for comparison", before="", measure=lambda: readers(None)
    ),
    "config-64": Attack(
        text=f"the largest config.json that is read, named by {NUM_READERS} objects",
        before="",
        measure=lambda: readers(64 * KIB),
    ),
    "config-900": Attack(
        text=f"a ConfigMap of 900 KB named by {NUM_READERS} objects",
        before="500 MB; killed within 10 s under the chart's limit, again and again",
        measure=lambda: readers(900 * KIB),
    ),
    "templates-none": Attack(
        text=f"{NUM_READERS} objects that run, for comparison",
        before="",
        measure=lambda: templates(0),
    ),
    "templates": Attack(
        text=f"the largest pod template, another in each of {NUM_READERS} objects that run",
        before="",
        measure=lambda: templates(MOST_BYTES),
    ),
    "engines-0": Attack(text="two objects, for comparison", before="", measure=lambda: flooded(0)),
    "engines-20000": Attack(
        text="invented `engine` labels in one pod, by a Prometheus that bounds nothing",
        before="276 MB, ticks of 10 s",
        measure=lambda: flooded(20_000),
    ),
    "engines-400000": Attack(
        text="the same",
        before="everybody blind",
        measure=lambda: flooded(400_000),
    ),
    "engines-limited": Attack(
        text="the same, scraped as our PodMonitor says: the scrape of the pod fails",
        before="",
        measure=refused,
    ),
    "questions": Attack(
        text=f"{NUM_ASKERS} Recommend objects of one user with distinct questions, all at once",
        before="26 s a tick; another user's correction after 44 s",
        measure=askers,
    ),
    **{
        f"large-{field}": Attack(
            text=f"{LARGE_MODELS} ModelDeployments of 1.3 MB by `{field}`, as a list is read",
            before="581 MiB with 80 of them; killed, again and again" if not place else "",
            measure=lambda field=field: large_models(field),
        )
        for place, field in enumerate(LARGE)
    },
    "texts": Attack(
        text="1 MB of text in what `diagnose` reads", before="72 s with 20 KB", measure=texts
    ),
}
HEAD = """# Attacks, before and after

Written by `python tests/bench/attacks.py --page`, which says how. *Before* is what the review said
that found them; *now* was measured on two cores that others used too. Memory is what the process
took beyond its start, at most; of a tick, wall time.

| attack | before | now |
| --- | --- | --- |
"""


def measured(*arguments: str) -> str:
    """Return what this program says in a process of its own."""
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, __file__, "--child", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def row(attack: Attack, figures: Figures) -> str:
    told = "<br>".join(f"{name}: {value}" for name, value in figures.items())
    return f"| {attack.text} | {attack.before} | {told} |\n"


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(ATTACKS)))
@click.option("--page", is_flag=True, help="Write attacks.md.")
@click.option("--child", nargs=2, hidden=True, help="Measure in this process.")
def main(only: tuple[str, ...], page: bool, child: tuple[str, str] | None) -> None:
    if child is not None:
        name, argument = child
        run = {"flood": under_flood, "large": listed}.get(name)
        click.echo(run(argument) if run else json.dumps(ATTACKS[name].measure()))
        return
    text = HEAD
    for name in only or ATTACKS:
        is_served_here = name.startswith(("engines", "large"))
        attack = ATTACKS[name]
        figures = attack.measure() if is_served_here else json.loads(measured(name, "-"))
        text += row(attack, figures)
        click.echo(row(attack, figures).strip())
    if page:
        write_page(PAGE, text)


if __name__ == "__main__":
    main()
