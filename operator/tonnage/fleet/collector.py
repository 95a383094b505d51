"""How often the interpreter looks for rings of objects that nothing refers to."""

import gc
from typing import Final

YOUNG: Final = 50_000
"""Objects that came and did not go, between two looks at those: a tick of a fleet makes some
100,000s of values that are in no ring and go when it ends. With the interpreter's 700, looking at
them again and again doubled the time of reading the answers for 1,000 objects."""
MIDDLE: Final = 20
OLD: Final = 10
"""Looks at the younger ones, before one at the older."""


def collect_rarely() -> None:
    """Let rings wait: there are few of them, and none holds what a tick has read."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)
