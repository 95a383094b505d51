"""The operator's process on a real API server, with churn: what grows in it, and the page of that.

    python tests/bench/soak_real.py [--minutes 60] [--page]

It ticks every second, four of the threads of its writers come and go with each tick, and Kopf's
watches are there too, which ``soak.py`` leaves out. There are no engines and no Prometheus.
"""

import tempfile
import time
from pathlib import Path

import click
from measured import rss_mib, write_page

from api_world import ApiWorld, an_api_world
from site_lab import a_model
from tonnage.cluster.kube import MODEL_DEPLOYMENTS, KubeApi, load_client
from tonnage_lab import assets, controlplane

PAGE = Path(__file__).with_name("soak_real.md")
CRDS = Path(__file__).parents[2] / "crds"
MINUTE_S = 60.0
CHURN_S = 5.0
NUM_OBJECTS = 10
HEAD = """# An operator on a real API server, with churn

Written by `python tests/bench/soak_real.py --page`, which says what runs. {objects} objects; every
{churn:g} s one has another least number of replicas; each sixth time one is deleted and made anew.

| minute | RSS, MiB | threads | Lease writes | other writes | requests |
| ---: | ---: | ---: | ---: | ---: | ---: |
"""


def row(world: ApiWorld, minute: int, since_s: float) -> str:
    """Return what stands at the end of a minute, and what was asked for in it."""
    pid = world.operator.process.pid
    asked = [each for each in world.proxy.passed if each.at_s >= since_s]
    leases = [e for e in asked if "/leases" in e.path and e.method in {"POST", "PUT"}]
    threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    writes = len(world.proxy.writes(since_s=since_s))
    return (
        f"| {minute} | {rss_mib(pid):.1f} | {threads} | {len(leases)} | {writes} | {len(asked)} |"
    )


def churn(world: ApiWorld, number: int) -> None:
    name = f"m{number % NUM_OBJECTS}"
    path = MODEL_DEPLOYMENTS.path(world.namespace, name)
    if number % 6:
        scaling = {"scaling": {"minReplicas": 1 + number // NUM_OBJECTS % 3}}
        world.api.merge_patch(path, {"spec": scaling}, manager="a-user")
    else:
        live = world.api.get(path)
        world.api.delete(path, uid=live["metadata"]["uid"])
        world.apply(a_model(name))


@click.command()
@click.option("--minutes", type=int, default=60, show_default=True)
@click.option("--page", is_flag=True, help="Write soak_real.md.")
def main(minutes: int, page: bool) -> None:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        plane = controlplane.start(Path(folder), programs=assets.ensure(), crds=CRDS)
        api = KubeApi(load_client(str(plane.kubeconfig)))
        try:
            with an_api_world(plane, api, Path(folder)) as world:
                world.add_operator()
                world.apply(*(a_model(f"m{number}") for number in range(NUM_OBJECTS)))
                number = 0
                for minute in range(1, minutes + 1):
                    since_s = time.time()
                    while time.time() - since_s < MINUTE_S:
                        churn(world, number)
                        number += 1
                        time.sleep(CHURN_S)
                    found.append(row(world, minute, since_s))
                    click.echo(found[-1])
        finally:
            plane.stop()
    if page:
        head = HEAD.format(objects=NUM_OBJECTS, churn=CHURN_S)
        write_page(PAGE, head + "\n".join(found) + "\n")


if __name__ == "__main__":
    main()
