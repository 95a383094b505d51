"""The table of proof as a page."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from proof_manifests import BESIDE, SAID, is_read

Table = Mapping[str, Any]
HEAD: Final = """# What is rendered, and what each release of vLLM says to it

Written by `python tests/proof/run.py` from the sources of the releases; do not edit. `table.json`
has the words of every cell. A default test renders the manifests again and compares.

- **P** passed: all three columns take what is rendered.
- **p** passed, and the engine column is the release's parser and `AsyncEngineArgs` alone: its
  configuration was not asked (`--parser-only`), or needs what is stood in for (see `table.json`).
- **(P)** passed in the columns cache and image; the release itself was not asked.
- **us** refused by Tonnage, by name: nothing is rendered.
- **NO** rendered, and refused by the release or not to be read by it. There must be none.

The three columns behind a cell:

1. **Engine**: the release's own parser of `vllm serve`, `AsyncEngineArgs` and
   `create_engine_config`, with all checks of its configuration classes. PyTorch is there. Stood in
   for: compiled kernels (empty modules), Triton (vLLM's own placeholder), the GPU (the release's
   own CUDA platform, with name, memory, count and compute capability as constants), the host's
   memory (2 TiB), the hub (a folder with the config.json). The other packages are those of the
   environment of vLLM for CPU, with `packages.txt` and, before 0.20, `older-packages.txt` and,
   from 0.31 on, `newer-packages.txt` in front. Nothing is loaded and no kernel runs; memory of the
   GPU is not looked at.
2. **Cache**: the names that the kernels that write the cache know (the macro
   `DISPATCH_BY_KV_CACHE_DTYPE` of `csrc`), what they write for them, and the types that the
   attention backends for NVIDIA say they take. Not covered: kernels of compressed attention, and
   those of FlashInfer and FlashAttention that are not in vLLM's sources.
3. **Image**: ENTRYPOINT, USER, users that are made, and USER and LOGNAME of the stage `vllm-openai`
   of the Dockerfile, against the container's command, environment and user.
"""


def page(table: Table) -> str:
    """Return the page."""
    parts = [*_matrix(table), "", *_refused(table), *_of_scale_targets(table), *_counts(table)]
    return "\n".join([HEAD, *parts, ""])


def verdict(row: Mapping[str, Any]) -> str:
    """Return the letter of a cell."""
    if "refused" in row:
        return "us"
    others = [row["cache"], row["image"]]
    if row["engine"]["verdict"] == "refused" or any(each != "taken" for each in others):
        return "NO"
    letters = {"taken": "P", "not run": "(P)" if row["engine"]["stage"] == "none" else "p"}
    return letters[row["engine"]["verdict"]]


def problems(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a release says against a rendered manifest."""
    engine = row["engine"]
    if engine["verdict"] == "refused":
        yield f"{engine['stage']}: {_short(engine['words'])}"
    yield from (f"{part}: {row[part]}" for part in ("cache", "image") if row[part] != "taken")


def _short(words: str) -> str:
    return " ".join(words.split())[:300].replace("|", "/")


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _matrix(table: Table) -> Iterator[str]:
    versions = table["versions"]
    names = list(next(iter(versions.values()))["rows"])
    yield "| manifest | " + " | ".join(_minor(each) for each in versions) + " |"
    yield "|---" * (1 + len(versions)) + "|"
    for name in names:
        cells = [verdict(each["rows"][name]) for each in versions.values()]
        yield f"| {name} | " + " | ".join(cells) + " |"
    between = [each for each, said in versions.items() if said.get("between")]
    if between:
        yield ""
        yield (
            f"{', '.join(between)} has no source archive: its kernels and image are those that "
            "both neighbours have; the engine column is its own."
        )


def _refused(table: Table) -> Iterator[str]:
    """Yield each reason once, with the versions and how many manifests it concerns."""
    ours: dict[str, list[str]] = {}
    theirs: dict[tuple[str, str], list[str]] = {}
    for release, said in table["versions"].items():
        for name, row in said["rows"].items():
            if "refused" in row:
                words = _short(row["refused"]).replace(_minor(release), "N")
                ours.setdefault(f"{name}: {words}", []).append(_minor(release))
                continue
            for each in problems(row):
                theirs.setdefault((name, each), []).append(_minor(release))
    yield "## Refused by Tonnage"
    yield ""
    yield from (f"- {words} ({', '.join(where)})" for words, where in ours.items())
    yield ""
    yield "## Rendered, and refused by the release"
    yield ""
    yield from (f"- {name} ({', '.join(where)}): {each}" for (name, each), where in theirs.items())
    if not theirs:
        yield "None."
    yield ""


OF_SCALE_TARGETS: Final = """## A scale target

No pod is rendered for one: its container's flags are read. Each spelling that is read, as the
release's own parser reads it: **=** the same, **-** the release does not know it, **?** the release
takes it and here it makes the flags unknown, **NO** read otherwise here. There must be none."""


def reading(said: Mapping[str, Any], here: float | None) -> str:
    """Return the sign of what a release's parser and ``is_read`` make of one spelling."""
    if said["verdict"] != "taken":
        return "-" if said["verdict"] == "refused" else "(not asked)"
    if here is None:
        return "?"
    return "=" if said["value"] == here else "NO"


def readings(table: Table) -> Iterator[tuple[str, list[str]]]:
    """Yield each spelling with its signs."""
    for name, texts in SAID.items():
        for text in texts:
            here = is_read(name, [*BESIDE, *text.split()])
            said = [each["scale target"][text] for each in table["versions"].values()]
            yield text, [reading(one, here) for one in said]


def _of_scale_targets(table: Table) -> Iterator[str]:
    versions = table["versions"]
    yield from (OF_SCALE_TARGETS, "")
    yield "| flag | " + " | ".join(_minor(each) for each in versions) + " |"
    yield "|---" * (1 + len(versions)) + "|"
    yield from (f"| `{text}` | " + " | ".join(signs) + " |" for text, signs in readings(table))
    yield ""


def _counts(table: Table) -> Iterator[str]:
    rows = [row for said in table["versions"].values() for row in said["rows"].values()]
    found = Counter(map(verdict, rows))
    yield f"{len(table['versions'])} releases, {len(rows)} cells: {found['P']} passed, " + (
        f"{found['p']} passed by the parser, {found['(P)']} not asked, "
        f"{found['us']} refused by Tonnage, "
        f"{found['NO']} rendered and refused."
    )
