"""Which namespaces are watched, and when that has to be begun anew."""

import threading
from collections.abc import Callable, Collection


class Watches:
    """The namespaces that are watched now."""

    def __init__(self) -> None:
        self.namespaces: tuple[str, ...] = ()
        self.stale = threading.Event()
        """Set when a namespace can be read that is not watched."""
        self._is_over = False

    def begin(self, namespaces: tuple[str, ...]) -> None:
        self.namespaces = namespaces
        self.stale.clear()

    def note_readable(self, namespaces: Collection[str]) -> None:
        """Take in which namespaces could be listed."""
        if set(namespaces) - set(self.namespaces):
            self.stale.set()

    def end(self) -> None:
        """Begin none anew: the process was told to stop."""
        self._is_over = True

    def keep(
        self, find: Callable[[], tuple[str, ...]], watch: Callable[[tuple[str, ...]], None]
    ) -> None:
        """Watch what can be watched, until a watch ends though all of it is watched."""
        while True:
            self.begin(find())
            watch(self.namespaces)
            if self._is_over or not self.stale.is_set():
                return
