"""The page of ``fleet_real.py``: three tables, of which a run replaces the rows of its own size."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

HEAD = """# A crowd on a real API server

Written by `python tests/bench/fleet_real.py --page`, which says what runs. etcd, API server,
controllers, scheduler, KWOK, the query API and the operator share {cores} cores; the operator has
the settings of the chart (a tick every 15 s, 5 s of it for searches, 50 writes a second). Times in
seconds. Load: mean number of processes that wanted a core while the part ran, ours and those of
whoever else used the machine. Empty: a run did not come so far.

With more than 1,000 pods Prometheus is asked in parts of about as many, 4 with 3,000: 220 answers
in a round. The query API is a process of Python on the same cores; a change does not wait for it.
Rows of other sizes than the last run are of earlier versions: RSS before pages of lists were of 100
objects; of 200 and 500 objects by namespace, and JSON with blanks.
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
Rows = Mapping[str, Mapping[tuple[int, int], str]]
"""By table, then by number of objects and of questions."""


def rows_of(page: Path) -> Rows:
    """Return the rows that stand in a page."""
    text = page.read_text() if page.exists() else ""
    found: dict[str, dict[tuple[int, int], str]] = {title: {} for title in TABLES}
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        for line in body.splitlines():
            if cells := re.match(r"\| (\d+) \| \d+ \| (\d+) \|", line):
                found[title][int(cells[1]), int(cells[2])] = line
    return found


def with_figures(rows: Rows, figures: Mapping[str, float]) -> Rows:
    """Return the rows with those of one run, as far as it came."""
    place = int(figures["objects"]), int(figures["questions"])
    return {
        title: {**rows[title], place: _row(columns, figures)}
        if any(name in figures for name in columns)
        else rows[title]
        for title, (_, columns) in TABLES.items()
    }


def _row(columns: Mapping[str, tuple[str, str]], figures: Mapping[str, float]) -> str:
    forms = SAME | {name: form for name, (_, form) in columns.items()}
    cells = (form.format(figures[name]) if name in figures else "" for name, form in forms.items())
    return "| " + " | ".join(cells) + " |"


def page_of(rows: Rows, *, ticks: int) -> str:
    parts = [HEAD.format(cores=os.cpu_count())]
    for title, (text, columns) in TABLES.items():
        names = [*SAME, *(name for name, _ in columns.values())]
        parts += [f"## {title}\n", text.format(ticks=ticks) + "\n"]
        parts.append("| " + " | ".join(names) + " |")
        parts.append("|" + " ---: |" * len(names))
        parts += [line for _, line in sorted(rows[title].items())]
        parts.append("")
    return "\n".join(parts)
