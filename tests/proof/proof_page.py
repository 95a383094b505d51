"""The table of proof as a page."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

Table = Mapping[str, Any]
HEAD: Final = """# What is rendered, and what each release of vLLM says to it

Written by `python tests/proof/run.py` from the sources of the releases; do not edit. `table.json`
has the words of every cell. A default test renders the manifests again and compares.

- **P** passed: all three columns take what is rendered.
- **p** passed, with the release's parser and what came before its configuration was complete: the
  rest of the configuration needs what is stood in for.
- **(P)** passed in the columns cache and image; the release itself was not asked.
- **us** refused by Tonnage, by name: nothing is rendered.
- **NO** rendered, and refused by the release or not to be read by it. There must be none.

The three columns behind a cell:

1. **Engine**: the release's own parser of `vllm serve`, `AsyncEngineArgs` and
   `create_engine_config`, with all checks of its configuration classes. PyTorch is there. Stood in
   for: compiled kernels (empty modules), the GPU (the release's own CUDA platform, with name,
   memory, count and compute capability as constants), the hub (a folder with the config.json).
   Nothing is loaded and no kernel runs; memory is not looked at.
2. **Cache**: the names that the kernels that write the cache know (the macro
   `DISPATCH_BY_KV_CACHE_DTYPE` of `csrc`), what they write for them, and the types that the
   attention backends for NVIDIA say they take. Not covered: kernels of compressed attention, and
   those of FlashInfer and FlashAttention that are not in vLLM's sources.
3. **Image**: ENTRYPOINT, USER, users that are made, and USER and LOGNAME of the stage `vllm-openai`
   of the Dockerfile, against the container's command, environment and user.
"""


def page(table: Table) -> str:
    """Return the page."""
    return "\n".join([HEAD, *_matrix(table), "", *_refused(table), *_counts(table), ""])


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


def _counts(table: Table) -> Iterator[str]:
    rows = [row for said in table["versions"].values() for row in said["rows"].values()]
    found = Counter(map(verdict, rows))
    yield f"{len(table['versions'])} releases, {len(rows)} cells: {found['P']} passed, " + (
        f"{found['p']} passed as far as it could run, {found['(P)']} not asked, "
        f"{found['us']} refused by Tonnage, "
        f"{found['NO']} rendered and refused."
    )
