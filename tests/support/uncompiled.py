"""The engine model from its sources, where it is compiled too."""

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import tonnage.engine

ENGINE = Path(tonnage.engine.__path__[0])
NAMES = {f"tonnage.engine.{path.stem}": path.with_suffix(".py") for path in ENGINE.glob("*.pxd")}
"""The modules that can be compiled, and their sources."""


class SourceFinder(MetaPathFinder):
    """Finds the sources of these modules before their extensions."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_file_location(fullname, NAMES[fullname]) if fullname in NAMES else None


def prefer_sources() -> None:
    """Let everything that is imported from now on use the uncompiled engine: for benchmarks."""
    if loaded := NAMES.keys() & sys.modules.keys():
        raise RuntimeError(f"too late, these are imported: {sorted(loaded)}")
    sys.meta_path.insert(0, SourceFinder())


@contextmanager
def sources_beside() -> Iterator[dict[str, ModuleType]]:
    """Yield uncompiled copies of the modules, by their last name; others keep what they use."""
    kept = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    attributes = dict(vars(tonnage.engine))
    finder = SourceFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield {name.rpartition(".")[2]: importlib.import_module(name) for name in NAMES}
    finally:
        sys.meta_path.remove(finder)
        for name in NAMES:
            sys.modules.pop(name, None)
        sys.modules.update(kept)
        vars(tonnage.engine).update(attributes)
