"""The images of a site on kind: operator, engine emulator and Prometheus.

Docker's cache sees to it that nothing is built twice.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tonnage_lab import assets
from tonnage_lab.processes import LabError, run
from tonnage_lab.progress import Step, silent


def docker(*arguments: str | Path) -> str:
    """Return what docker prints.

    Raises:
        LabError: it failed, with its complaint.
    """
    return run(["docker", *arguments])


def answers() -> bool:
    try:
        docker("version", "--format", "{{.Server.Version}}")
    except LabError:
        return False
    return True


PYTHON: Final = "python:3.11-slim"
"""What the images are built on."""
OPERATOR: Final = "tonnage/operator:lab"
ENGINE: Final = "vllm/vllm-openai:v0.33.0"
"""The name that manifests ask for; an emulator answers to it."""
EMULATOR: Final = '#!/bin/sh\nexec python -m tonnage_lab.emulator "$@"\n'
"""What pods start as ``vllm``."""
PROMETHEUS: Final = "tonnage-kind/prometheus:lab"


def operator(*, step: Step = silent) -> str:
    """Build the operator's image from the sources as they are."""
    root = assets.of_checkout(".")
    with step("building the operator's image"):
        docker(
            "build", "--quiet", "--tag", OPERATOR, "--file", root / "deploy/Dockerfile",
            f"--build-arg=BASE={PYTHON}", "--build-arg=UNPINNED=yes", root,
        )  # fmt: skip
    return OPERATOR


def build_all(truth: Mapping[str, Any], *, step: Step = silent) -> tuple[str, ...]:
    """Build what a site needs and return the names; engines have these hidden constants."""
    program = assets.ensure(["prometheus"], step=step)["prometheus"]
    operator(step=step)
    with step("building the other images"), tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _fill(folder, truth)
        shutil.copy(program, folder / "prometheus")
        recipe = assets.of_checkout("deploy/kind") / "Dockerfile"
        for target, tag in (("engine", ENGINE), ("prometheus", PROMETHEUS)):
            docker("build", "--quiet", "--tag", tag, "--file", recipe, "--target", target, folder)
    return OPERATOR, ENGINE, PROMETHEUS


def _fill(folder: Path, truth: Mapping[str, Any]) -> None:
    """Write what the emulator's image takes beside the operator's."""
    (folder / "truth.json").write_text(json.dumps(dict(truth)))
    (folder / "vllm").write_text(EMULATOR)
    (folder / "vllm").chmod(0o755)
    shutil.copytree(
        assets.of_checkout("operator/tonnage_lab"),
        folder / "tonnage_lab",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
