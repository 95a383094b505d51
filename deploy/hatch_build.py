"""Compiles the engine model into the wheel where that is possible; where not, the wheel is pure.

A module of ``tonnage/engine`` with a ``.pxd`` beside it is compiled. A wheel gets the extension
modules from a temporary folder; for an editable install they are put beside their sources. With
``TONNAGE_PURE=1`` in the environment nothing is compiled.

Run as a program, it compiles the copy of the engine that lies in the working folder.
"""

import hashlib
import importlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENGINE = Path("tonnage/engine")
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "annotation_typing": False,  # types are those of the .pxd
    "cdivision": False,  # // and % as Python has them
    "binding": False,
    "auto_pickle": False,
}
COMPILE_ARGUMENTS = ["-O2", "-g0", "-ffp-contract=off"]
"""No fused multiply-add, which rounds once where Python rounds twice."""
LINK_ARGUMENTS = ["-Wl,-s"]


class CustomBuildHook(BuildHookInterface):
    """What hatchling calls before and after it writes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say which modules belong into the wheel."""
        self.folder = TemporaryDirectory()
        home = Path(self.root, "operator")
        try:
            if version == "editable":
                compile_in_place(home, Path(self.folder.name))
                return
            built = build(home, Path(self.folder.name))
        except (NotCompiledError, OSError) as error:
            self.app.display_warning(
                f"Tonnage's engine model is not compiled ({error}): plans come out the same, but "
                "what they simulate takes 20 to 60 times as long"
            )
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(path): str(ENGINE / path.name) for path in built})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled."""
        self.folder.cleanup()


class NotCompiledError(Exception):
    """Why the engine model runs uncompiled."""


def compile_in_place(home: Path, folder: Path) -> None:
    """Put the extension modules beside their sources, and nothing stale."""
    for stale in extensions(home):
        stale.unlink()
    for path in build(home, folder):
        shutil.copy(path, home / ENGINE)


def build(home: Path, folder: Path) -> list[Path]:
    """Compile a copy of the engine in a folder; return the extension modules.

    Raises:
        NotCompiledError: this machine cannot, or was told not to.
    """
    if os.environ.get("TONNAGE_PURE"):
        raise NotCompiledError("TONNAGE_PURE is set")
    if os.name != "posix" or platform.python_implementation() != "CPython":
        raise NotCompiledError("only done for CPython on Linux and macOS")
    shutil.copytree(home / ENGINE, folder / ENGINE, ignore=shutil.ignore_patterns("*.so"))
    (folder / ENGINE.parent / "__init__.py").touch()
    digest = digest_of(home / ENGINE)
    for path in compiled_sources(folder / ENGINE):
        with path.open("a") as source:
            source.write(f'\nSOURCE_DIGEST = "{digest}"\n')
    program = [sys.executable, str(Path(__file__).resolve())]
    ended = subprocess.run(  # noqa: S603
        program, cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )
    if ended.returncode:
        raise NotCompiledError(reason_in(ended.stderr) or f"exit status {ended.returncode}")
    return extensions(folder)


def reason_in(output: str) -> str:
    """Return the first line that tells of an error, on one line of bearable length."""
    lines = (line.strip() for line in output.splitlines())
    return shorten(next((line for line in lines if "error:" in line.lower()), ""), 160)


def compiled_sources(engine: Path) -> list[Path]:
    """Return the modules that have C types."""
    return sorted(path.with_suffix(".py") for path in engine.glob("*.pxd"))


def digest_of(engine: Path) -> str:
    """Return what tells whether extension modules belong to the sources beside them."""
    sources = compiled_sources(engine)
    texts = [path.read_bytes() for path in [*sources, *engine.glob("*.pxd")]]
    return hashlib.sha256(b"".join(sorted(texts))).hexdigest()


def extensions(home: Path) -> list[Path]:
    """Return the compiled modules of the engine below a folder."""
    return sorted((home / ENGINE).glob("*.so"))


def compile_here() -> None:
    """Compile the copy of the engine in the working folder, in place, and import it once."""
    from Cython.Build import cythonize  # noqa: PLC0415
    from setuptools import Extension, setup  # noqa: PLC0415

    modules = [
        Extension(
            ".".join(path.with_suffix("").parts),
            [str(path)],
            extra_compile_args=COMPILE_ARGUMENTS,
            extra_link_args=LINK_ARGUMENTS,
        )
        for path in compiled_sources(ENGINE)
    ]
    setup(
        name="tonnage-engine",
        packages=[],
        ext_modules=cythonize(modules, compiler_directives=DIRECTIVES),
        script_args=["build_ext", "--inplace", "--parallel", str(os.cpu_count() or 1)],
    )
    sys.path.insert(0, str(Path.cwd()))
    for module in modules:
        importlib.import_module(module.name)


if __name__ == "__main__":
    compile_here()
