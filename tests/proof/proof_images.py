"""What the official image of a release has: read from its Dockerfile."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STAGE: Final = "vllm-openai"
"""Of the Dockerfile: the image vllm/vllm-openai."""


class UnknownFormError(Exception):
    """A Dockerfile does not look like any that was read before."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """What decides how a container starts."""

    entrypoint: list[str]
    user: str
    """Of USER; empty: root."""
    user_ids: list[int]
    """That are made beside those of the base image."""
    names: dict[str, str]
    """USER and LOGNAME of the environment."""


def read_image(folder: Path) -> Image:
    """Follow the stages from the image down to where it begins."""
    stages = _stages((folder / "docker/Dockerfile").read_text())
    lines: list[str] = []
    name = STAGE
    while name in stages:
        parent, own = stages[name]
        lines = own + lines
        name = parent
    entrypoints = [each for each in lines if each.startswith("ENTRYPOINT ")]
    users = [each.partition(" ")[2] for each in lines if each.startswith("USER ")]
    if not entrypoints:
        raise UnknownFormError(f"stage {STAGE} has no ENTRYPOINT")
    made = [re.search(r"--uid[ =](\d+)", each) for each in lines if "useradd" in each]
    if None in made:
        raise UnknownFormError("useradd without --uid")
    return Image(
        entrypoint=json.loads(entrypoints[-1].partition(" ")[2]),
        user=users[-1] if users else "",
        user_ids=[int(each[1]) for each in made if each],
        names=_names(lines),
    )


def _stages(text: str) -> dict[str, tuple[str, list[str]]]:
    """Return stage -> what it is made from, and its instructions, each in a line."""
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n", " ", plain)
    found: dict[str, tuple[str, list[str]]] = {}
    own: list[str] = []
    for line in joined.splitlines():
        if begun := re.match(r"FROM (?:--\S+ )?(\S+) AS (\S+)", line, re.IGNORECASE):
            own = []
            found[begun[2]] = (begun[1], own)
        elif line.strip():
            own.append(line.strip())
    if STAGE not in found:
        raise UnknownFormError(f"no stage {STAGE}")
    return found


def _names(lines: list[str]) -> dict[str, str]:
    pattern = r"\b(USER|LOGNAME)[= ]([^\s=]+)"
    settings = [each for each in lines if each.startswith("ENV ")]
    return {name: value for each in settings for name, value in re.findall(pattern, each)}
