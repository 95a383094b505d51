"""Text of others as a page can hold it: HTML and SVG, read as HTML or as XML."""

import re
from typing import Final

LONGEST: Final = 24
"""Of a name in a picture, in characters; its table has all of it."""
_UNWRITABLE: Final = re.compile(
    r"[^\t\n\r\x20-\x7e\xa0-\u200a\u2010-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd"
    r"\U00010000-\U0010ffff]"
)
"""What XML does not hold, and what turns the direction of a text around."""


def plain(text: str) -> str:
    r"""Return a text without characters that a page cannot hold, or would obey.

    >>> plain("a\x00b")
    'a�b'
    """
    return _UNWRITABLE.sub("\ufffd", text)


def short(name: str) -> str:
    """Return a name as a picture has room for it.

    >>> short("RTX-PRO-6000"), short("a" * 30)
    ('RTX-PRO-6000', 'aaaaaaaaaaaaaaaaaaaaaaa…')
    """
    name = " ".join(plain(name).split())
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
