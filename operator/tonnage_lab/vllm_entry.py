"""What runs in a container of the lab in place of vLLM: ``vllm_entry.py serve MODEL [flags]``.

A program for the Python that vLLM is installed for: it knows nothing of Tonnage's packages. The
container's arguments are those that a GPU cluster would be given, and vLLM for CPU takes them all;
what is added is what an image or a hub would bring along.
"""

import os
import sys
import sysconfig
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

MODEL_CONFIG: Final = "TONNAGE_LAB_MODEL_CONFIG"
"""The config.json of the one model there is, whatever its id: there is no hub here."""
KV_SPACE_GIB: Final = "TONNAGE_LAB_KV_SPACE_GIB"
GPUS: Final = "NVIDIA_VISIBLE_DEVICES"
"""The 'GPUs' of a container, as the pod runner numbers them: each stands for a core."""
CORES: Final = "TONNAGE_LAB_CORES"
"""Those that stand for GPUs, such as ``2,3``; without it all that the container may run on. So the
lab can keep off the core of an engine that is measured."""
ADDED: Final = ("--skip-tokenizer-init",)
"""A configuration has no tokenizer beside it: prompts are token ids."""


class EntryError(Exception):
    """The container was given what no engine can be started with."""


@dataclass(frozen=True)
class EngineLaunch:
    """What to run, and what a model's folder must hold before."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    """Beside what is there."""
    core: int
    model_folder: Path


def launch(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    vllm: str,
    cores: Collection[int],
    scratch: Path,
) -> EngineLaunch:
    """Return how to start the engine.

    ``vllm``: the program. ``cores``: that this process may run on, where none are chosen.
    ``scratch``: for the model.

    Raises:
        EntryError: no model, or not one GPU that stands for a core there is.
    """
    match arguments:
        case ["serve", model, *flags] if not model.startswith("-"):
            pass
        case _:
            raise EntryError("the first arguments must be serve and the model")
    folder = scratch / model
    chosen = environment.get(CORES)
    core = core_of(environment.get(GPUS, ""), cores_in(chosen) if chosen else cores)
    return EngineLaunch(
        argv=(vllm, "serve", str(folder), *flags, *_missing(ADDED, flags)),
        environment={
            "VLLM_CPU_KVCACHE_SPACE": environment[KV_SPACE_GIB],
            "VLLM_CPU_OMP_THREADS_BIND": str(core),
        },
        core=core,
        model_folder=folder,
    )


def core_of(gpus: str, cores: Collection[int]) -> int:
    """Return the core of a container's GPU: the last one first, since the others work on the first.

    Raises:
        EntryError: it has none or several, or there are fewer cores.

    >>> core_of("0", {0, 1, 2, 3}), core_of("3", {0, 1, 2, 3})
    (3, 0)
    """
    numbers = [each for each in gpus.split(",") if each]
    if len(numbers) != 1 or not numbers[0].isdigit():
        raise EntryError(f"one GPU is one core here, {GPUS} is {gpus!r}")
    number, last_first = int(numbers[0]), sorted(cores, reverse=True)
    if number >= len(last_first):
        raise EntryError(f"GPU {number} has no core: there are {len(last_first)}")
    return last_first[number]


def cores_in(text: str) -> set[int]:
    """Read a list of cores.

    Raises:
        EntryError: it is none.
    """
    try:
        return {int(each) for each in text.split(",")}
    except ValueError as error:
        raise EntryError(f"{CORES} must be numbers between commas, not {text!r}") from error


def _missing(wanted: Sequence[str], flags: Sequence[str]) -> list[str]:
    given = {flag.partition("=")[0] for flag in flags}
    return [flag for flag in wanted if flag not in given]


def main() -> NoReturn:
    """Become the engine, or end with 1."""
    try:
        found = launch(
            sys.argv[1:],
            os.environ,
            vllm=str(Path(sysconfig.get_path("scripts")) / "vllm"),
            cores=os.sched_getaffinity(0),
            scratch=Path(os.environ.get("VLLM_CACHE_ROOT", "/tmp")) / "models",  # noqa: S108
        )
        config = Path(os.environ[MODEL_CONFIG]).read_text()
    except (EntryError, KeyError, OSError) as error:
        sys.exit(f"vllm_entry: {type(error).__name__}: {error}")
    found.model_folder.mkdir(parents=True, exist_ok=True)
    (found.model_folder / "config.json").write_text(config)
    os.sched_setaffinity(0, {found.core})  # its server as well: a replica has one core in all
    os.execve(found.argv[0], list(found.argv), {**os.environ, **found.environment})  # noqa: S606


if __name__ == "__main__":
    main()
