"""Files of the repository as pages of the site, and their links led to where they stand in it."""

import os
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[3]
PLACES: Final = {
    "index.md": "README.md",
    "how-to/gitops.md": "deploy/gitops/README.md",
    "how-to/kind.md": "deploy/kind/README.md",
    "design/index.md": "operator/DESIGN.md",
    "design/decisions.md": "operator/decisions/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "changelog.md": "CHANGELOG.md",
    "accuracy/speed.md": "tests/bench/speed.md",
    "accuracy/memory.md": "tests/bench/memory.md",
    "accuracy/other-tools.md": "tests/bench/other_tools.md",
    "accuracy/capacity.md": "tests/bench/capacity.md",
    "accuracy/replay.md": "tests/bench/replay.md",
    "accuracy/replay-views.md": "tests/bench/replay_views.md",
    "accuracy/replay-unseen.md": "tests/bench/replay_unseen.md",
    "accuracy/mutation.md": "tests/bench/mutation.md",
    "accuracy/fleet-real.md": "tests/bench/fleet_real.md",
    "accuracy/faults.md": "tests/faults/README.md",
}
DECISIONS: Final = "operator/decisions"
LINK: Final = re.compile(r"(\]\()(?!\w+:|#|/)([^)#\s]+)")
"""What stands between the brackets of a link to a file, without an anchor."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand elsewhere in the repository."""
    decisions = {
        f"design/decisions/{path.name}": str(path.relative_to(ROOT))
        for path in sorted((ROOT / DECISIONS).glob("[!R]*.md"))
    }
    for page, source in (PLACES | decisions).items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to files of the repository to their places in the site.

    What is linked and is no page, such as an example, becomes a file of the site.
    """
    folder = Path(str(page.file.abs_src_path)).parent
    places = {each.abs_src_path: each for each in files if each.abs_src_path}

    def led(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / match[2]))
        if path.is_dir():
            path = path / "README.md"
        if str(path) not in places and _is_copied(path):
            copied = File.generated(
                config, f"files/{path.relative_to(ROOT)}", abs_src_path=str(path)
            )
            files.append(copied)
            places[str(path)] = copied
        target = places.get(str(path))
        if target is None:
            return match[0]  # a page of the site, or a mistake that the build then names
        return match[1] + os.path.relpath(target.src_uri, Path(page.file.src_uri).parent)

    return LINK.sub(led, markdown)


def _is_copied(path: Path) -> bool:
    return path.is_file() and path.is_relative_to(ROOT) and path.suffix != ".md"
