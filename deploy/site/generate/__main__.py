"""Write what the documentation takes from the program: `make docs`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from parts import drawings, filled
from reference import PAGES

from decisions import decisions_page

ROOT: Final = Path(__file__).resolve().parents[3]
SITE: Final = ROOT / "deploy/site/pages"
WRITTEN: Final = "<!-- Written by `make docs` from the code: edit it there. -->\n"


def documents() -> Iterator[tuple[Path, str]]:
    """Yield every file that is written, or has a written part, with its text as it has to be.

    Commands of pages find their files from the current folder, which is that of a checkout.
    """
    os.chdir(ROOT)
    for name, page in PAGES.items():
        yield SITE / "reference" / name, WRITTEN + page()
    yield ROOT / "operator/decisions/README.md", WRITTEN + decisions_page()
    for path in [ROOT / "README.md", *sorted(SITE.rglob("*.md"))]:
        if path.parent.name != "reference":
            text = path.read_text()
            yield path, filled(text, path.parent)
            yield from drawings(text, path.parent)


def main() -> None:
    for path, text in documents():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(path.relative_to(ROOT))  # noqa: T201


if __name__ == "__main__":
    main()
