"""Options that benches on the traces of the replay benchmark have alike."""

from pathlib import Path
from typing import Final

import click

TRACES: Final = click.option(
    "--traces",
    "traces",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Folder with the traces of the replay benchmark.",
)
OUT: Final = click.option(
    "--out", "folder", type=click.Path(path_type=Path, file_okay=False), required=True
)
PAGE: Final = click.option(
    "--page", type=click.Path(path_type=Path), help="Markdown to write at the end."
)
PROCESSES: Final = click.option(
    "--processes", type=click.IntRange(min=1), default=2, show_default=True
)
