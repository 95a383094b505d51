"""What can be reached from an object of the package by its attributes and containers."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any


def leaves(root: object, *, without: tuple[type, ...] = ()) -> Iterator[tuple[str, object]]:
    """Yield each text and number with the way to it, once for each object that has it.

    Not through functions, nor what the package has not made; nor through these types.
    """
    seen, todo = set[int](), deque([("", root)])
    alive = list[object]()  # an id is of one object while that lives
    while todo:
        way, each = todo.popleft()
        if isinstance(each, str | int | float):
            yield way, each
        elif id(each) not in seen and not isinstance(each, without):
            seen.add(id(each))
            alive.append(each)
            todo.extend((f"{way}{step}", part) for step, part in _parts(each))


def _parts(each: Any) -> Iterator[tuple[str, object]]:
    if isinstance(each, Mapping):
        for key, value in list(each.items()):
            yield "{}", key
            yield f"[{key!r}]", value
    elif isinstance(each, tuple | list | set | frozenset | deque):
        yield from (("[]", part) for part in list(each))
    elif type(each).__module__.startswith("tonnage."):
        slots = (name for base in type(each).__mro__ for name in getattr(base, "__slots__", ()))
        for name in {*slots, *getattr(each, "__dict__", {})}:
            if hasattr(each, name):
                yield f".{name}", getattr(each, name)
