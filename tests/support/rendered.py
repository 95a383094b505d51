"""What is written for each example: the objects of `tonnage render`, as a user gets them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from cli_builders import run

EXAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.yaml"))


@cache
def children_of(example: Path, *, has_pod_monitors: bool = False) -> str:
    """Return the children of an example as a JSON list; none of one with a scale target."""
    option = "--pod-monitor" if has_pod_monitors else "--no-pod-monitor"
    result = run("render", "-f", str(example), "--format", "json", option)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    return json.dumps(found["items"] if found.get("kind") == "List" else [found])


def children(example: Path, **options: bool) -> list[dict[str, Any]]:
    """Return the same, to be changed as one likes."""
    made: list[dict[str, Any]] = json.loads(children_of(example, **options))
    return made
