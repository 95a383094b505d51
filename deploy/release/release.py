"""Makes a release, or says why there is none: wheel, chart package, CRD, SBOM, each audited.

    python deploy/release/release.py --base python:3.11-slim@sha256:... --to release/

Needs the tools for tests (`make unit` installs them) and an index of packages. The SBOM and the
audit are of a fresh environment, with the wheel and what deploy/requirements.txt lists by hash.
Nothing is left in the folder unless all went well.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

ROOT = Path(__file__).parents[2]
CRD = "crds/modeldeployments.tonnage.dev.yaml"
PINS = "deploy/requirements.txt"
TOOL_PINS = "deploy/release/tools.txt"
DIGEST = re.compile(r".+@sha256:[0-9a-f]{64}")
SPEC_VERSION = "1.6"
"""Of CycloneDX."""


class ReleaseError(Exception):
    """There is no release; the message is one line for whoever wanted it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a person asks for."""

    base: str
    """Image that the operator's is built on."""
    to: Path
    service: str
    """That knows of vulnerabilities."""
    offline: bool


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """Run a program to its end and return what it printed.

    Raises:
        ReleaseError: it failed, with the last line that it said.
    """
    words = [str(word) for word in command]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode != 0:
        raise ReleaseError(f"{Path(words[0]).name} {words[1]}: {last_line(ended)}")
    return ended.stdout


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    lines = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
    return lines[-1] if lines else f"ended with {ended.returncode}"


def version(root: Path = ROOT) -> str:
    found: str = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    return found


def refusals(asked: Asked, root: Path = ROOT) -> list[str]:
    """Return why there is no release, each reason in a line; nothing: it may be made."""
    released = version(root)
    chart = yaml.safe_load((root / "charts/tonnage/Chart.yaml").read_text())
    entry = re.compile(rf"^## \[?{re.escape(released)}\]?(?: |$)", re.MULTILINE)
    changed = run("git", "status", "--porcelain", folder=root).splitlines()
    reasons = {
        "--offline: what is released is audited, which takes a vulnerability service": (
            asked.offline
        ),
        f"base image {asked.base} has no digest: give NAME:TAG@sha256:...": (
            DIGEST.fullmatch(asked.base) is None
        ),
        f"the tree is dirty; files that differ from the commit: {len(changed)}": bool(changed),
        f"CHANGELOG.md has no entry for {released}": (
            entry.search((root / "CHANGELOG.md").read_text()) is None
        ),
        f"the chart is of {chart['version']} for {chart['appVersion']}, not of {released}": (
            {chart["version"], chart["appVersion"]} != {released}
        ),
        f"{asked.to} holds something already": asked.to.exists() and any(asked.to.iterdir()),
    }
    return [reason for reason, holds in reasons.items() if holds]


def wheel(to: Path) -> Path:
    """Build the wheel."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", to)
    (made,) = to.glob("*.whl")
    return made


def chart(to: Path) -> None:
    """Package the chart, which carries the CRD, and put the CRD beside it."""
    from tonnage_lab import assets  # noqa: PLC0415 -- what refuses needs no Tonnage

    helm = assets.ensure(["helm"])["helm"]
    run(helm, "package", ROOT / "charts/tonnage", "--destination", to)
    shutil.copy(ROOT / CRD, to)


def environment(folder: Path, pins: str, *wheels: Path) -> Path:
    """Make an environment of packages with these hashes, and of wheels; return its interpreter."""
    run(sys.executable, "-m", "venv", folder)
    install = (folder / "bin" / "python", "-m", "pip", "install", "--quiet")
    run(*install, "--require-hashes", "--requirement", ROOT / pins)
    if wheels:
        run(*install, "--no-deps", "--no-index", *wheels)
    return install[0]


def sbom(python: Path, tools: Path, to: Path) -> Path:
    """Write what an environment holds, in CycloneDX, valid by its schema."""
    made = to / f"tonnage-{version()}.cdx.json"
    run(
        tools.with_name("cyclonedx-py"), "environment", python, "--pyproject",
        ROOT / "pyproject.toml", "--spec-version", SPEC_VERSION, "--output-reproducible",
        "--validate", "--output-format", "JSON", "--output-file", made,
    )  # fmt: skip
    return made


def audit(python: Path, auditor: Sequence[str | Path], service: str, to: Path) -> None:
    """Look every pinned package up; one that cannot be looked up is no package without faults.

    Raises:
        ReleaseError: a package has a known vulnerability, or not all could be looked up.
    """
    pins = to / "requirements.txt"
    held = run(python, "-m", "pip", "freeze", "--all", "--exclude", "tonnage")
    pins.write_text(held)
    asked = [
        "--requirement", pins, "--no-deps", "--disable-pip", "--strict", "--progress-spinner",
        "off", "--format", "json", "--vulnerability-service", service,
    ]  # fmt: skip
    words = [str(word) for word in (*auditor, *asked)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    try:
        found = json.loads(ended.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        raise ReleaseError(
            f"the vulnerability service {service} did not answer for every package, and what is "
            f"not audited is not released: {last_line(ended)}"
        ) from None
    if faults := [f"{each['name']} {fault['id']}" for each in found for fault in each["vulns"]]:
        raise ReleaseError(f"{len(faults)} known vulnerabilities: {', '.join(faults)}")
    if len(found) != len(held.splitlines()):
        raise ReleaseError(f"{len(found)} of {len(held.splitlines())} packages were audited")


def checksums(to: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(to.iterdir())
    ]
    (to / "SHA256SUMS").write_text("".join(lines))


def release(asked: Asked) -> None:
    """Make everything in a folder of its own, and hand it over when all went well."""
    with TemporaryDirectory(prefix="tonnage-release-") as folder:
        scratch, made = Path(folder), Path(folder) / "made"
        made.mkdir()
        pinned = environment(scratch / "pinned", PINS, wheel(made))
        tools = environment(scratch / "tools", TOOL_PINS)
        audit(pinned, [tools.with_name("pip-audit")], asked.service, made)
        chart(made)
        sbom(pinned, tools, made)
        checksums(made)
        asked.to.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, asked.to, dirs_exist_ok=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--base", required=True, help="base image of the operator's, NAME:TAG@sha256:...")
    add("--to", type=Path, required=True, help="an empty folder")
    add("--service", choices=["pypi", "osv"], default="pypi", help="knows of vulnerabilities")
    add("--offline", action="store_true", help="refused")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Release, and print how the image is built; 1 where there is no release."""
    asked = Asked(**vars(_parser().parse_args(argv)))
    if reasons := refusals(asked):
        return _without_release(*reasons)
    try:
        release(asked)
    except ReleaseError as error:
        return _without_release(str(error))
    image = f"docker build --file deploy/Dockerfile --build-arg BASE={asked.base} ."
    sys.stdout.write(f"Tonnage {version()} is in {asked.to}. The image: {image}\n")
    return 0


def _without_release(*reasons: str) -> int:
    sys.stderr.write("\n".join(("no release:", *reasons, "")))
    return 1


if __name__ == "__main__":
    sys.exit(main())
