"""A crowd on a real API server: start-up herd, fixed point, restart, changes, and a page of that.

    python tests/bench/fleet_real.py [--objects 1000] [--replicas 3] [--made] [--page]

The operator's process runs with the settings of the chart on the lab's control plane; KWOK plays
nodes and kubelets. A query API answers for every pod that is Ready: all pods do the same, far from
what they serve; together they ask 100 questions (model, context, SLO). With ``--made`` their
Deployments stand there when it starts: there is no herd, and a large fleet is there in minutes.
Control plane, KWOK, the query API and this script share the machine with the operator: its CPU is
its own, wall time is what all of them leave it.
"""

import os
import random
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import click
from fleet_real_world import NUM_QUESTIONS, REPLICAS, USER, Crowd, Look, a_crowd
from measured import table, write_page

from site_lab import Request
from tonnage_lab.load_client import quantile

HEAD = """# A crowd on a real API server

Written by `python tests/bench/fleet_real.py --page`, which says what runs. etcd, API server,
controllers, scheduler, KWOK, the query API and the operator share {cores} cores; the operator has
the settings of the chart (a tick every 15 s, 5 s of it for searches, 50 writes a second). Times in
seconds. Load: mean number of processes that wanted a core while the part ran, ours and those of
whoever else used the machine. Empty: the run did not come so far.

With more than 1,000 pods Prometheus is asked in parts of about as many, 4 with 3,000: 220 answers
in a round. The query API is a process of Python on the same cores; a change does not wait for it.
"""
SAME = {"objects": "{:.0f}", "pods": "{:.0f}", "questions": "{:.0f}"}
TABLES: Mapping[str, tuple[str, Mapping[str, tuple[str, str]]]] = {
    "Start-up herd": (
        "The operator starts; all objects stand there, and nothing was made for any, or (where no\n"
        "time of Deployments is told) their Deployments without a status. Deployments, picture:\n"
        "until every object has its Deployment, and a status. Held, searching: most objects that\n"
        "waited for their turn to be written, and for a search.",
        {
            "first": ("first write", "{:.0f}"),
            "deployments": ("Deployments", "{:.0f}"),
            "picture": ("picture", "{:.0f}"),
            "pods_s": ("pods Ready after", "{:.0f}"),
            "writes_per_s": ("writes/s", "{:.0f}"),
            "most_per_s": ("most in 1 s", "{:.0f}"),
            "queue": ("held", "{:.0f}"),
            "searches": ("searching", "{:.0f}"),
            "refused_429": ("429", "{:.0f}"),
            "refused_409": ("409", "{:.0f}"),
            "asked": ("requests an object", "{:.1f}"),
            "longest": ("longest tick", "{:.1f}"),
            "herd_rss": ("RSS, MiB", "{:.0f}"),
            "herd_load": ("load", "{:.1f}"),
        },
    ),
    "Nothing changes": (
        "Means of {ticks} ticks in which everything stands as it should; then the process ends as\n"
        "in an update, and another one starts. Answered: until no object waits for a search.",
        {
            "unseen": ("without picture", "{:.0f}"),
            "writes": ("writes a tick", "{:.2f}"),
            "requests": ("requests a tick", "{:.0f}"),
            "cpu": ("CPU a tick", "{:.2f}"),
            "wall": ("wall a tick", "{:.2f}"),
            "rss": ("RSS, MiB", "{:.0f}"),
            "fixed_load": ("load", "{:.1f}"),
            "restart_tick": ("restart: first tick", "{:.0f}"),
            "restart_answered": ("answered", "{:.0f}"),
            "restart_longest": ("longest tick", "{:.1f}"),
            "restart_writes": ("writes", "{:.0f}"),
        },
    ),
    "From a change of the spec to the Deployment": (
        "One object in a hundred changes at the same moment, again and again; their pods are\n"
        "replaced.",
        {
            "changes": ("changes", "{:.0f}"),
            "p50": ("p50", "{:.2f}"),
            "p99": ("p99", "{:.2f}"),
            "most": ("most", "{:.2f}"),
            "changing_cpu": ("CPU a tick", "{:.2f}"),
            "changing_wall": ("wall a tick", "{:.2f}"),
            "changing_load": ("load", "{:.1f}"),
        },
    ),
}


def page_of(figures: Mapping[str, float]) -> str:
    """Return the page of a run, as far as it came."""
    parts = [HEAD.format(cores=os.cpu_count()).rstrip()]
    for title, (text, columns) in TABLES.items():
        forms = {name: (name, form) for name, form in SAME.items()} | {**columns}
        if any(name in figures for name in columns):
            row = [
                form.format(figures[name]) if name in figures else ""
                for name, (_, form) in forms.items()
            ]
            parts += [f"## {title}", text.format(ticks=FIXED_TICKS)]
            parts.append(table([name for name, _ in forms.values()], [row], " ---: "))
    return "\n\n".join(parts) + "\n"


PAGE = Path(__file__).with_name("fleet_real.md")
LONG_S, SETTLE_S = 3600.0, 900.0
CALM_S, LEAST_S = 90.0, 420.0
"""Without a write, after which a fleet counts as at rest, but not before the window of scaling down
is over and constants have been learned."""
FIXED_TICKS = 12
"""Three minutes: the children of more than half of the objects are looked at."""
LEAST_CHANGES = 100
CHANGING = 0.01
APART_S = 20.0
"""Between two rounds of changes: the pods of one have been replaced."""
WAITING = re.compile(r"waiting for capacity searches.*pending=(\d+)")


def tick_walls(looks: Iterable[Look]) -> list[float]:
    """Return what each tick took that ended between two looks; of several their mean."""
    found = []
    for before, after in pairwise(looks):
        number = round(after.num_ticks - before.num_ticks)
        if number > 0:
            found += [(after.ticks_s - before.ticks_s) / number] * number
    return found


@dataclass(kw_only=True)
class Story:
    """What is done with a crowd, and what was seen."""

    crowd: Crowd
    url: str
    is_made: bool = False
    """Their Deployments stand there from the beginning."""
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return len(self.crowd.names)

    def say(self, text: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:.1f} {text}")

    def herd(self) -> None:
        """Start the operator for objects that nothing was made for."""
        crowd, began_s = self.crowd, time.time()
        crowd.start(self.url)

        def done() -> bool:
            made, told = self._firsts(began_s)
            if len(crowd.looks) % 20 == 0:
                self.say(f"Deployments {len(made)}, statuses {len(told)} of {self.number}")
            is_made = self.is_made or len(made) >= self.number
            return is_made and len(told) >= self.number

        crowd.until(done, "every Deployment and status is written", timeout_s=LONG_S)
        made, told = self._firsts(began_s)
        if made:
            self.figures["deployments"] = max(made.values()) - began_s
        asked, writes = crowd.requests(began_s), crowd.writes(began_s)
        per_s = [sum(w.at_s // 1 == s for w in writes) for s in {w.at_s // 1 for w in writes}]
        first_s, last_s = min(w.at_s for w in writes), max(w.at_s for w in writes)
        pending = map(int, WAITING.findall(crowd.operator.log()))
        self.figures |= {
            "first": first_s - began_s,
            "picture": max(told.values()) - began_s,
            "writes_per_s": len(writes) / (last_s - first_s),
            "most_per_s": max(per_s),
            "queue": max(each.held for each in crowd.looks),
            "searches": max(pending, default=0),
            "refused_429": sum(each.code == 429 for each in asked),
            "refused_409": sum(each.code == 409 for each in asked),
            "asked": len(asked) / self.number,
            "longest": max(tick_walls(crowd.looks)),
            "herd_rss": max(each.rss_mib for each in crowd.looks),
            "herd_load": mean_load(crowd.looks),
        }
        self.say(f"herd {rounded(self.figures)}")

    def _firsts(self, since_s: float) -> Iterator[Mapping[tuple[str, str], float]]:
        """Yield when each Deployment was first written, by object; then each status."""
        writes = self.crowd.writes(since_s)
        for kind in (("deployments", 201), ("modeldeployments/status", 200)):
            yield first(each for each in writes if (each.resource, each.code) == kind)

    def settle(self) -> None:
        """Wait for all pods, and until nothing was written for a while."""
        crowd, began_s = self.crowd, time.time()
        wanted = self.number * crowd.replicas

        def there() -> bool:
            if len(crowd.looks) % 20 == 0:
                self.say(f"pods Ready {crowd.num_ready} of {wanted}")
            return crowd.num_ready >= wanted

        crowd.until(there, f"{wanted} pods are Ready", timeout_s=SETTLE_S)
        self.figures["pods_s"] = time.time() - began_s

        def calm() -> bool:
            if len(crowd.looks) % 20 == 0:
                self.say(f"{len(crowd.writes(time.time() - CALM_S))} writes in {CALM_S:.0f} s")
            is_old = time.time() - began_s > LEAST_S
            return is_old and not crowd.writes(time.time() - CALM_S)

        crowd.until(calm, "nothing is written", timeout_s=SETTLE_S)

    def fixed(self) -> None:
        """Let it tick with nothing to do."""
        crowd, since_s = self.crowd, time.time()
        unseen = [
            each["metadata"]["name"]
            for each in crowd.objects()
            if each["status"].get("observedGeneration") != each["metadata"]["generation"]
        ]
        self._tick(FIXED_TICKS)
        ticks = [each for each in crowd.looks if each.at_s >= since_s]
        number = ticks[-1].num_ticks - ticks[0].num_ticks
        self.figures |= {
            "unseen": len(unseen),
            "ticks": number,
            "writes": len(crowd.writes(since_s)) / number,
            "requests": len(crowd.requests(since_s)) / number,
            "cpu": (ticks[-1].cpu_s - ticks[0].cpu_s) / number,
            "wall": (ticks[-1].ticks_s - ticks[0].ticks_s) / number,
            "rss": ticks[-1].rss_mib,
            "fixed_load": mean_load(ticks),
        }
        self.say(f"fixed {rounded(self.figures)}")

    def restart(self) -> None:
        """End the process as an update does, and start another."""
        crowd = self.crowd
        crowd.restart()
        began_s = time.time()
        crowd.looks.clear()
        crowd.look()
        crowd.until(lambda: crowd.looks[-1].num_ticks >= 1, "a tick is whole", timeout_s=LONG_S)
        self.figures["restart_tick"] = time.time() - began_s
        crowd.until(self._is_answered, "all is answered", timeout_s=LONG_S)
        self.figures["restart_answered"] = time.time() - began_s
        self._tick(5)
        self.figures |= {
            "restart_writes": len(crowd.writes(began_s)),
            "restart_longest": max(tick_walls(crowd.looks)),
        }
        self.say(f"restarted {rounded(self.figures)}")

    def _is_answered(self) -> bool:
        """Tell whether the last tick left no search undone."""
        lines = self.crowd.operator.log().rpartition("event=started")[2]
        return self.crowd.looks[-1].num_ticks > len(WAITING.findall(lines))

    def _tick(self, number: int) -> None:
        until = self.crowd.looks[-1].num_ticks + number
        self.crowd.until(lambda: self.crowd.looks[-1].num_ticks >= until, "ticks", timeout_s=LONG_S)

    def change(self) -> None:
        """Change specs of one object in a hundred at the same moment, and again."""
        crowd, began_s = self.crowd, time.time()
        chance = random.Random(1)  # noqa: S311
        each_time = max(1, round(self.number * CHANGING))
        rounds = -(-LEAST_CHANGES // each_time)
        begin = crowd.looks[-1]
        for turn in range(rounds):
            since_s = time.time()
            some = chance.sample(crowd.names, each_time)
            crowd.patch(some, {"pods": {"cpu": f"{turn + 1}m"}})
            crowd.until(
                lambda since_s=since_s: len(self.changed_s(since_s)) >= each_time,
                "the Deployments have it",
                timeout_s=300,
            )
            end_s = since_s + APART_S
            crowd.until(lambda end_s=end_s: time.time() >= end_s, "a pause", timeout_s=60)
            self.say(f"{turn + 1} of {rounds} rounds of {each_time} changes")
        taken, end = self.changed_s(began_s), crowd.looks[-1]
        number = end.num_ticks - begin.num_ticks
        self.figures |= {
            "changes": len(taken),
            "p50": quantile(taken, 0.5),
            "p99": quantile(taken, 0.99),
            "most": max(taken),
            "changing_cpu": (end.cpu_s - begin.cpu_s) / number,
            "changing_wall": (end.ticks_s - begin.ticks_s) / number,
            "changing_load": mean_load(each for each in crowd.looks if each.at_s >= began_s),
        }

    def changed_s(self, since_s: float) -> list[float]:
        """Return the time from each change to the answered write of the Deployment."""
        asked = dict[tuple[str, str], float]()
        found = []
        for each in sorted(self.crowd.asked, key=lambda each: each.asked_at_s):
            key = each.namespace, each.name
            if each.asked_at_s < since_s or each.verb != "patch":
                continue
            if each.resource == "modeldeployments" and each.user != USER:
                asked[key] = each.asked_at_s
            elif each.resource == "deployments" and each.user == USER and key in asked:
                found.append(each.at_s - asked.pop(key))
        return found


def first(requests: Iterable[Request]) -> Mapping[tuple[str, str], float]:
    """Return when the first request about each object was answered."""
    found = dict[tuple[str, str], float]()
    for each in requests:
        found.setdefault((each.namespace, each.name), each.at_s)
    return found


def mean_load(looks: Iterable[Look]) -> float:
    return fmean(each.load for each in looks)


def rounded(figures: Mapping[str, float]) -> Mapping[str, float]:
    return {name: round(value, 2) for name, value in figures.items()}


@click.command()
@click.option("--objects", type=int, default=1000, show_default=True)
@click.option("--page", is_flag=True, help="Write fleet_real.md.")
@click.option("--replicas", type=int, default=REPLICAS, show_default=True, help="Of each object.")
@click.option("--made", is_flag=True, help="The Deployments stand there when the operator starts.")
def main(objects: int, page: bool, replicas: int, made: bool) -> None:
    questions = min(objects, NUM_QUESTIONS)
    with a_crowd(objects, questions, replicas=replicas, is_made=made) as (crowd, url):
        story = Story(crowd=crowd, url=url, is_made=made)
        story.figures |= {"objects": objects, "pods": objects * replicas, "questions": questions}
        for part in (story.herd, story.settle, story.fixed, story.restart, story.change):
            part()
            if page:
                write_page(PAGE, page_of(story.figures))
        click.echo(rounded(story.figures))
        crowd.operator.kill()


if __name__ == "__main__":
    main()
