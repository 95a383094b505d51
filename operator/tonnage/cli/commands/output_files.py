"""What plan, compare and replay print alike: what they skipped, how far they are, data, pages."""

import csv
import errno
import gzip
import importlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tonnage.cli.console import Failure, ManifestError, failing, needs_extra, print_error, remark
from tonnage.cli.read.manifest import ManifestObject, Manifests
from tonnage.cli.read.references import References, parsed_model
from tonnage.cli.results.planning import (
    PlanContext,
    Planned,
    Refused,
    RunningState,
    answer,
    parts_of,
)
from tonnage.engine import schedule
from tonnage.sizing.plan import OnSearch
from tonnage.units import count_of

if TYPE_CHECKING:  # slow to import, and plans have none
    from tonnage.replay.traces import Trace

PATIENCE_S: Final = 2.0
BETWEEN_S: Final = 1.0
GROWTH: Final = 1.5
"""A long search speaks ever more seldom: a minute has nine lines, not sixty."""
UNCOMPILED: Final = (
    "The engine model is not compiled on this machine: plans take seconds; see CONTRIBUTING.md"
)


def is_compiled() -> bool:
    """Whether the engine model runs as an extension module; a source runs some 25 times slower."""
    return not str(schedule.__file__).endswith(".py")


class Progress:
    """Tells how far a search is; before that, once, that the engine model is not compiled."""

    def __init__(
        self,
        tell: Callable[[str], None],
        *,
        clock: Callable[[], float],
        is_compiled: bool,
        is_terminal: bool = True,
    ) -> None:
        self._tell, self._clock, self._is_known = tell, clock, is_compiled
        self._is_terminal = is_terminal

    def tell(self, message: str, *, is_shown: bool = True) -> None:
        if not self._is_known:
            self._is_known = True
            self._tell(UNCOMPILED)
        if is_shown:
            self._tell(message)

    def counting(self) -> OnSearch:
        """Return what to call before each run of the engine model.

        It shows their number on a terminal: files have nothing of how an answer was found.
        """
        numbers, is_due = count(), self._seldom()

        def on_search() -> None:
            number = next(numbers)
            if is_due():
                runs = count_of(number, "run")
                message = f"Searching for goodput: {runs} of the engine model so far"
                self.tell(message, is_shown=self._is_terminal)

        return on_search

    def reading(self, name: str) -> Callable[[int, str], None]:
        """Return what to call with how many of something were read of a file so far."""
        is_due = self._seldom()

        def count_read(number: int, noun: str) -> None:
            if is_due():
                self._tell(f"Reading {name}: {count_of(f'{number:,}', noun)} so far")

        return count_read

    def _seldom(self) -> Callable[[], bool]:
        """Return what says whether to speak: first after the patience, then ever more seldom."""
        waits_s = PATIENCE_S
        speaks_at = self._clock() + waits_s

        def is_due() -> bool:
            nonlocal waits_s, speaks_at
            if (now := self._clock()) < speaks_at:
                return False
            waits_s *= GROWTH
            speaks_at = now + waits_s
            return True

        return is_due


PAGE_MODULES: Final = frozenset({"matplotlib"})


def report_skipped(manifests: Manifests) -> None:
    """Say what cannot be read, and what is none of ours."""
    for problem in manifests.problems:
        print_error(problem)
    for resource in manifests.others:
        kind = " ".join(part for part in (resource.api_version, resource.kind) if part)
        remark(
            f"Note: {resource.location}: skipped {kind or 'an object without a kind'} "
            f"{resource.name}"
        )


def check_some(manifests: Manifests, names: tuple[str, ...]) -> None:
    """Say what is skipped, and refuse files that hold nothing else."""
    report_skipped(manifests)
    if not (manifests.model_deployments or manifests.problems):
        raise Failure(f"no ModelDeployment of tonnage.dev in {', '.join(names)}")


def single_model(manifests: Manifests, names: tuple[str, ...], *, command: str) -> ManifestObject:
    """Return the only ModelDeployment, for a command that takes one."""
    report_skipped(manifests)
    if manifests.problems:
        raise Failure("the manifests are not valid")
    found = manifests.model_deployments
    if len(found) != 1:
        listed = ": " + ", ".join(each.name for each in found) if found else ""
        raise Failure(
            f"{command} takes one ModelDeployment, {', '.join(names)} holds {len(found)}{listed}"
        )
    return found[0]


def answers_for(
    resource: ManifestObject,
    manifests: Manifests,
    terms: PlanContext,
    beside: References,
    live: RunningState | None = None,
) -> list[Planned | Refused]:
    """Return the answer for one object, or for each of its roles; ``live``: what runs for it.

    Of one that is not valid it is said what is wrong, and there is none.
    """
    try:
        parsed = parsed_model(resource, manifests)
        references = beside.of(parsed)
    except ManifestError as error:
        print_error(error.message)
        return []
    terms = replace(terms, guessed=resource.guessed)
    parts = parts_of(parsed.model, terms, references)
    if parts.message:
        remark(f"Note: {parts.message}")
    return [answer(each, terms, references, live=live) for each in parts.models]


def search_progress() -> Progress:
    on_terminal = sys.stderr.isatty()
    clock = time.monotonic
    return Progress(remark, clock=clock, is_compiled=is_compiled(), is_terminal=on_terminal)


def check_page(page_file: str | None, form: str) -> None:
    """Refuse, before anything is computed, a page that could not be written."""
    if page_file is None:
        return
    if page_file == "-" and form != "text":
        raise Failure(f"--html - and -o {form} both print to standard output; name a file for one")
    with needs_extra("matplotlib", "--html", PAGE_MODULES):
        importlib.import_module("tonnage.cli.page.document")
    if page_file != "-" and (why := _unwritable(Path(page_file))):
        raise Failure(f"--html {page_file}: {why}")


def _unwritable(path: Path) -> str | None:
    """Return why no file can be written there; None: as far as can be seen, it can."""
    if path.is_dir():
        return os.strerror(errno.EISDIR)
    if not path.parent.is_dir():
        return os.strerror(errno.ENOENT)
    is_allowed = os.access(path if path.exists() else path.parent, os.W_OK)
    return None if is_allowed else os.strerror(errno.EACCES)


def write_page(page_file: str, text: str) -> None:
    """Write a page to a file or, for ``-``, to standard output."""
    if page_file == "-":
        click.echo(text, nl=False)
        return
    with failing(OSError, where=f"--html {page_file}: "):
        Path(page_file).write_text(text, encoding="utf-8")
    remark(f"Wrote {page_file}")


def write_trace(path: Path, trace: "Trace") -> None:
    """Write a trace with our own columns; a name that ends in .gz is packed."""
    name = path.name.lower()
    if not name.removesuffix(".gz").endswith(".csv"):
        raise Failure(f"--save-trace {path}: a trace is written as .csv or .csv.gz")
    opened = gzip.open if name.endswith(".gz") else open
    with (
        failing(OSError, where=f"--save-trace {path}: "),
        opened(path, "wt", encoding="utf-8", newline="") as lines,
    ):
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("arrival_s", "prompt_tokens", "output_tokens"))
        rows = zip(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, strict=True)
        writer.writerows((f"{at_s:.3f}", prompt, output) for at_s, prompt, output in rows)
    remark(f"Wrote {path}: {count_of(len(trace), 'request')}")
