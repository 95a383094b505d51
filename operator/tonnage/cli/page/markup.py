"""HTML and SVG elements as values: a text among them is escaped, wherever it comes from."""

import html
import re
from dataclasses import dataclass
from typing import Final

_UNWRITABLE: Final = re.compile(
    r"[^\t\n\r\x20-\x7e\xa0-\u200a\u2010-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd"
    r"\U00010000-\U0010ffff]"
)
"""What XML does not hold, and what turns the direction of a text around."""
_VOID: Final = frozenset({"br", "col", "meta"})


@dataclass(frozen=True, slots=True)
class Markup:
    """What is written as it stands."""

    text: str

    def __str__(self) -> str:
        return self.text


def escaped(text: str) -> str:
    r"""Return a text as it must stand in a page to be read as text.

    >>> escaped('<b title="1">\x00')
    '&lt;b title=&quot;1&quot;&gt;�'
    """
    return html.escape(_UNWRITABLE.sub("\ufffd", text))


def element(name: str, *children: Markup | str, **attributes: str | float) -> Markup:
    """Return an element that is well-formed as HTML and as XML.

    An underscore in an attribute's name stands for a hyphen, one at its end for nothing.

    >>> str(element("p", "2 < 3", class_="note", stroke_width=1.26))
    '<p class="note" stroke-width="1.3">2 &lt; 3</p>'
    """
    named = "".join(f' {_name(key)}="{_value(value)}"' for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{named}/>")
    return Markup(f"<{name}{named}>{joined(*children)}</{name}>")


def joined(*parts: Markup | str, by: str = "") -> Markup:
    """Return parts in a row."""
    return Markup(by.join(escaped(part) if isinstance(part, str) else part.text for part in parts))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return escaped(value) if isinstance(value, str) else f"{round(value, 1):g}"
