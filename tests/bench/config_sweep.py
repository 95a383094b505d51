"""Reads every config.json that anyone can install: ``python tests/bench/config_sweep.py``.

The files are those of aiconfigurator-core's wheel, with the quantization file beside each, and
those of ``tests/proof/oracle.json``, most of which transformers' classes write without arguments.
Printed is how many are looked up, assumed and refused, with the words, and any that end otherwise:
there must be none. ``PYTHONPATH`` names the Tonnage that reads: an earlier one knows no assumptions
and no second file.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tonnage.catalog import models
from tonnage.catalog.gpu import CatalogError

WHEEL: Final = "aiconfigurator-core==0.12.0"
SUFFIX: Final = "_config.json"
SECOND: Final = "_hf_quant_config.json"
ORACLE: Final = Path(__file__).parents[1] / "proof" / "oracle.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", help="where the wheel is; else it is downloaded")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        wheel = Path(options.wheel) if options.wheel else _downloaded(Path(temporary))
        _report("aiconfigurator-core", list(_of_wheel(wheel)))
    _report("transformers and vLLM's classes", list(_of_oracle()))


def _downloaded(folder: Path) -> Path:
    subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def _of_wheel(wheel: Path) -> Iterator[tuple[str, str, str | None]]:
    """Yield (name, config.json, the second file or None) of each model."""
    with zipfile.ZipFile(wheel) as opened:
        texts = {
            Path(name).name: opened.read(name).decode()
            for name in opened.namelist()
            if "model_configs/" in name and name.endswith(SUFFIX)
        }
    for name, text in sorted(texts.items()):
        if not name.endswith(SECOND):
            stem = name.removesuffix(SUFFIX)
            yield stem.replace("--", "/", 1), text, texts.get(stem + SECOND)


def _of_oracle() -> Iterator[tuple[str, str, str | None]]:
    for name, answer in json.loads(ORACLE.read_text())["architectures"].items():
        if "config" in answer:
            yield name, json.dumps(answer["config"]), None


def outcome(name: str, text: str, second: str | None) -> tuple[str, str]:
    """Return what comes of a file, and the words of it."""
    try:
        if second is not None and hasattr(models, "with_second_file"):
            text = models.with_second_file(text, {"hf_quant_config.json": second}.get)
        shape = models.read_model_config(text, name=name)
    except CatalogError as error:
        return "refused", str(error).removeprefix(f"model {name}: ")
    except Exception as error:
        return "ended otherwise", f"{type(error).__name__}: {error}"
    assumed = getattr(shape, "assumptions", ())
    return ("assumed", "; ".join(each.taken for each in assumed)) if assumed else ("looked up", "")


def _report(source: str, files: list[tuple[str, str, str | None]]) -> None:
    found = {name: outcome(name, text, second) for name, text, second in files}
    counts = Counter(kind for kind, _ in found.values())
    summary = ", ".join(f"{number} {kind}" for kind, number in counts.most_common())
    lines = [f"{source}: {len(found)} files: {summary}"]
    lines += [f"  {kind}: {name}: {words[:200]}" for name, (kind, words) in found.items() if words]
    sys.stdout.write("\n".join(lines) + "\n\n")


if __name__ == "__main__":
    main()
