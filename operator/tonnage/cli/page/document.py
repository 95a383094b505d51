"""A page: what the terminal shows, as HTML that needs nothing beside itself, with pictures."""

import io
from collections.abc import Callable, Iterable, Iterator
from html import escape
from typing import Final

from rich.console import Console, RenderableType

from tonnage.cli.console import WIDEST
from tonnage.cli.page.drawing import Picture
from tonnage.cli.page.plain import plain
from tonnage.cli.text.layout import Tiles

HEAD: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>
body {{ margin: 0 auto; padding: 1.5rem; max-width: 1320px; color: #1c2430; background: #ffffff; }}
body, figcaption, dl, svg text {{ font-family: system-ui, sans-serif !important; }}
pre {{ overflow-x: auto; font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; }}
figure {{ margin: 1.5rem 0; break-inside: avoid; }}
figcaption {{ color: #566170; font-size: .87rem; line-height: 1.45; max-width: 720px; }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .6rem; }}
dl > div {{ border: 1px solid #d9dee5; border-radius: 6px; padding: .5rem .7rem; }}
dt {{ color: #566170; font-size: .8rem; }}
dd {{ margin: .2rem 0 0; }}
@media (max-width: 800px) {{ body {{ padding: .75rem; }} pre {{ font-size: min(13px, 2.5vw); }} }}
@media (max-width: 800px) {{ .wide {{ display: none; }} }}
@media (min-width: 801px) {{ .narrow {{ display: none; }} }}
svg {{ display: block; max-width: 100%; height: auto; }}
</style>
</head>
<body>
"""

NARROW: Final = 60
"""Columns of a page on a telephone."""
Report = Callable[[Console], Iterable[RenderableType]]
"""Lays an answer out for a console of some width."""


def document(title: str, report: Report, pictures: Iterable[Picture]) -> str:
    """Return the whole page: a report, for wide and for narrow screens, and the pictures below."""
    texts = (
        f'<div class="{name}">\n{"".join(_text(report, width))}</div>\n'
        for name, width in (("wide", WIDEST), ("narrow", NARROW))
    )
    parts = [HEAD.format(title=escape(plain(title))), *texts, *map(_figure, pictures)]
    return "".join([*parts, "</body>\n</html>\n"])


def _text(report: Report, width: int) -> Iterator[str]:
    console = Console(
        record=True, file=io.StringIO(), width=width, color_system="truecolor", no_color=False,
        force_terminal=True, highlight=False, markup=False, emoji=False,
    )  # fmt: skip

    def written() -> str:
        text = console.export_html(inline_styles=True, code_format="{code}")
        return f"<pre>{plain(text)}</pre>\n" if text else ""

    for part in report(console):
        if isinstance(part, Tiles):
            rows = (map(escape, map(plain, row)) for row in part.rows)
            tiles = "".join("<div><dt>{}</dt><dd>{}</dd></div>\n".format(*row) for row in rows)
            yield f"{written()}<dl>\n{tiles}</dl>\n"
        else:
            console.print(part)
    yield written()


def _figure(picture: Picture) -> str:
    title, note = (escape(plain(each)) for each in (picture.title, picture.note))
    below = f"<figcaption>{note}</figcaption>"
    return f"<figure>\n<h3>{title}</h3>\n{picture.drawing}\n{below}\n</figure>\n"
