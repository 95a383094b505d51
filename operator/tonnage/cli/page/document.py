"""A page: what the terminal shows, as HTML that needs nothing beside itself, with pictures."""

import io
from collections.abc import Callable, Iterable
from html import escape
from typing import Final

from rich.console import Console, RenderableType

from tonnage.cli.console import WIDEST
from tonnage.cli.page.drawing import Picture
from tonnage.cli.page.plain import plain

HEAD: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>
body {{ margin: 0 auto; padding: 1.5rem; max-width: 1320px; color: #1c2430; background: #ffffff; }}
body, figcaption, svg text {{ font-family: system-ui, sans-serif !important; }}
pre {{ overflow-x: auto; font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; }}
figure {{ margin: 1.5rem 0; break-inside: avoid; }}
figcaption {{ color: #566170; font-size: .87rem; line-height: 1.45; max-width: 720px; }}
svg {{ display: block; max-width: 100%; height: auto; }}
</style>
</head>
<body>
"""


Report = Callable[[Console], Iterable[RenderableType]]
"""Lays an answer out for a console of some width."""


def document(title: str, report: Report, pictures: Iterable[Picture]) -> str:
    """Return the whole page: a report, and the pictures below it."""
    parts = [HEAD.format(title=escape(plain(title))), _text(report), *map(_figure, pictures)]
    return "".join([*parts, "</body>\n</html>\n"])


def _text(report: Report) -> str:
    console = Console(
        record=True,
        file=io.StringIO(),
        width=WIDEST,
        color_system="truecolor",
        no_color=False,
        force_terminal=True,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in report(console):
        console.print(part)
    written = console.export_html(inline_styles=True, code_format="{code}")
    return f"<pre>{plain(written)}</pre>\n"


def _figure(picture: Picture) -> str:
    title, note = (escape(plain(each)) for each in (picture.title, picture.note))
    below = f"<figcaption>{note}</figcaption>"
    return f"<figure>\n<h3>{title}</h3>\n{picture.drawing}\n{below}\n</figure>\n"
