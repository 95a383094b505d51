"""The list of decisions, by their titles."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[3] / "operator/decisions"


def decisions_page() -> str:
    lines = ["# Decisions", "", "Why things are as they are, oldest first.", ""]
    for path in sorted(FOLDER.glob("0*.md")):
        title = path.read_text().partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    lines += ["- [The budget of the package](budget.md)"]
    return "\n".join(lines) + "\n"
