"""Mutation testing: which changes of a package's source its own unit tests do not notice.

    pip install --target /tmp/cosmic cosmic-ray
    PYTHONPATH=operator:tests/support:tests/bench:/tmp/cosmic \
        python tests/bench/mutation.py control|policy|estimate|serving [--every 5] [--module steady]

``--every 5`` takes the mutants whose line, operator and place in the line hash to 0 modulo 5: of a
line that two commits share, both try the same changes. ``--again FILE`` tries only those that
lived by the output in a file: at a commit before, it shows which of them the tests killed then.

The mutants are those of cosmic-ray, which needs to be installed for this alone, and three kinds of
our own: a float by a tenth more, ``min`` for ``max``, and a comparison of ``in`` turned round. Left
out are those of its operators that only repeat others (``+`` becomes ``-``, not each of the other
eleven), and decorators. Its runner is not used: it writes each mutant into the working tree and
starts Python anew, seconds for each. Here everything that the package does not change is imported
once; each mutant gets a fork, in which an import hook gives its source. mutmut mutates within
functions only, and half of this arithmetic is in the constants above them.

A mutant is killed by a test that fails, by a doctest of its module, or by the time limit. Tests
that fail without any mutant are left out and named. The limit is one of processor time, so that
it ends the same mutants on a busy machine.
"""

import contextlib
import difflib
import doctest
import gc
import importlib
import importlib.metadata
import io
import math
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from zlib import crc32

import click
import grimp
import hypothesis
import parso
import pytest
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "control": "control",
    "policy": "policy",
    "estimate": "estimate",
    "serving": "sizing/serving",
}
SWAPS = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul")
COMPARED = (
    "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
    "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is",
)  # fmt: skip
OTHERS = (
    "ReplaceUnaryOperator_Delete_USub", "ReplaceUnaryOperator_Delete_Not", "AddNot",
    "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer",
    "ZeroIterationForLoop",
)  # fmt: skip
NAMES = (
    *(f"core/ReplaceBinaryOperator_{each}" for each in SWAPS),
    *(f"core/ReplaceComparisonOperator_{each}" for each in COMPARED),
    *(f"core/{each}" for each in OTHERS),
)
CANNOT_RUN = "cannot-run"
EXAMPLES = 20
"""Of each property: what only the hundredth example notices has no test of its own."""
DONE_S = 0.02
"""Between two looks at whether a fork has ended."""
JOBS = 2
WAITING = 20
"""Times its limit of processor time a mutant may take by the clock: one may sleep for ever."""


class _Replaced(Operator):
    """One leaf of the syntax tree for another."""

    kind = parso.python.tree.Name

    def mutation_positions(self, node):
        if isinstance(node, self.kind) and self.other(node.value):
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        return self.kind(self.other(node.value), node.start_pos, node.prefix)

    def other(self, value: str) -> str | None:
        raise NotImplementedError

    @classmethod
    def examples(cls):
        return ()


class SwapMinMax(_Replaced):
    def other(self, value):
        return {"min": "max", "max": "min"}.get(value)


class FloatByATenth(_Replaced):
    kind = parso.python.tree.Number

    def other(self, value):
        is_float = set(".e") & set(value) and float(value)
        return repr(1.1 * float(value)) if is_float else None


class NotIn(Operator):
    def mutation_positions(self, node):
        if node.type == "comparison" and node.children[1].get_code().strip() == "in":
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        node.children[1] = parso.parse(" not in")
        return node

    @classmethod
    def examples(cls):
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A module with one change, and a name of the change that is the same in another commit."""

    name: str
    module: str
    path: Path
    source: str

    def __str__(self) -> str:
        where = f"{self.path.relative_to(ROOT)}:{self.line}"
        return f"{where} {self.name}\n{self.diff}"

    @property
    def diff(self) -> str:
        lines = difflib.unified_diff(
            self.path.read_text().splitlines(), self.source.splitlines(), lineterm="", n=0
        )
        return "\n".join(line for line in lines if line[:3] not in {"---", "+++"})

    @property
    def line(self) -> int:
        pairs = zip(self.path.read_text().splitlines(), self.source.splitlines(), strict=False)
        return next(number for number, (old, new) in enumerate(pairs, 1) if old != new)


def mutants_of(paths: Sequence[Path], is_drawn: Callable[[str], bool]) -> Iterator[Mutant]:
    """Yield the mutants of some modules whose name is drawn."""
    operators = (*(get_operator(name)() for name in NAMES), SwapMinMax(), FloatByATenth(), NotIn())
    for path in paths:
        source = path.read_text()
        lines = source.splitlines()
        for operator in operators:
            kind, seen = type(operator).__name__, Counter()
            for occurrence, (begin, _) in enumerate(positions(path, operator)):
                line = lines[begin[0] - 1].strip()
                seen[line] += 1
                name = f"{kind} {seen[line]} {line}"
                changed = mutate_code(source, operator, occurrence) if is_drawn(name) else None
                if changed in (None, source) or is_signature(changed_line(source, changed)):
                    continue
                module = ".".join(path.relative_to(ROOT / "operator").with_suffix("").parts)
                yield Mutant(name=name, module=module, path=path, source=changed)


def positions(path: Path, operator: Operator) -> Iterator[tuple[tuple[int, int], object]]:
    """Yield where an operator can make a change: (line, column) at which it begins and ends."""
    for node in ast_nodes(tree_of(path)):
        yield from operator.mutation_positions(node)


@cache
def tree_of(path: Path) -> object:
    return get_ast_from_path(path)


def changed_line(source: str, changed: str) -> str:
    pairs = zip(source.splitlines(), changed.splitlines(), strict=False)
    return next((new for old, new in pairs if old != new), "")


def is_signature(line: str) -> bool:
    """Tell whether a line says how a function or class is made, not what it does."""
    return line.startswith("@") or ", /," in line or line.strip() == "/,"


class Hook(SourceFileLoader):
    """Gives the source of one mutant in place of what lies in its file."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(mutant.path))
        self._mutant = mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._mutant.module:
            return None
        return spec_from_file_location(name, self._mutant.path, loader=self)

    def get_code(self, fullname: str):
        return compile(self._mutant.source, str(self._mutant.path), "exec", dont_inherit=True)


class Failures:
    """A plugin of pytest that keeps which tests failed."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.found.append(report.nodeid)


def tests_of(package: str, module: str) -> list[str]:
    """Return the test files of a package, those of one module first."""
    files = sorted((ROOT / "tests/unit" / PACKAGES[package]).glob("test_*.py"))
    return [
        str(each.relative_to(ROOT))
        for each in sorted(files, key=lambda f: f.stem != f"test_{module}")
    ]


def run_tests(
    files: Sequence[str], without: Sequence[str], *plugins: object, most_failures: int = 1
) -> int:
    """Return 0 if all tests pass; they end when so many failed, 0: they do not."""
    deselected = [f"--deselect={each}" for each in without]
    quiet = [
        "-q",
        "-mnot thorough",
        f"--maxfail={most_failures}",
        "--assert=plain",
        "--hypothesis-profile=mutation",
    ]
    unused = ("cacheprovider", "unraisableexception", "threadexception", "pytest_cov")
    quiet += [f"-pno:{each}" for each in unused]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = pytest.main([*quiet, *deselected, *files], plugins=list(plugins))
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status


def notices(mutant: Mutant, files: Sequence[str], without: Sequence[str]) -> bool:
    sys.meta_path.insert(0, Hook(mutant))
    if run_tests(files[:1], without) or run_tests(files[1:], without):
        return True
    with contextlib.redirect_stdout(io.StringIO()):
        return bool(doctest.testmod(importlib.import_module(mutant.module)).failed)


def forked(work: Callable[[], int], limit_s: float = 0) -> int:
    """Return the process that does some work and ends with what it returns, or at a limit."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        if limit_s:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit_s), math.ceil(limit_s) + 1))
        status = work()
    finally:
        os._exit(status)


def baseline(files: Sequence[str]) -> tuple[list[str], float]:
    """Return the tests that fail as things stand, and how long all take."""
    reading, writing = os.pipe()

    def work() -> int:
        failures = Failures()
        status = run_tests(files, (), failures, most_failures=0)
        told = failures.found or [CANNOT_RUN] * bool(status)
        os.write(writing, "\n".join(told).encode())
        return 0

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    os.waitpid(forked(work), 0)
    used_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used.ru_utime
    os.close(writing)
    with os.fdopen(reading) as told:
        failing = told.read().splitlines()
    if CANNOT_RUN in failing:
        raise click.ClickException("the tests do not run")
    return failing, used_s


def survivors(
    mutants: Sequence[Mutant], package: str, without: Sequence[str], limit_s: float
) -> tuple[list[Mutant], int]:
    """Return the mutants that no test noticed, printed when found, and how many were late."""
    left, running = list(mutants), {}
    survived, late = [], 0
    while left or running:
        while left and len(running) < JOBS:
            mutant = left.pop(0)
            files = tests_of(package, mutant.path.stem)
            pid = forked(lambda m=mutant, f=files: int(notices(m, f, without)), limit_s)
            running[pid] = mutant, time.monotonic()
        time.sleep(DONE_S)
        for pid, (mutant, began_s) in list(running.items()):
            if time.monotonic() - began_s > WAITING * limit_s:
                os.killpg(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            late += os.WIFSIGNALED(status)
            if status == 0:
                survived.append(mutant)
                click.echo(f"\n{mutant}")
            del running[pid]
    return survived, late


def import_the_rest(package: str) -> None:
    """Import what the package does not change, once for all mutants."""
    graph = grimp.build_graph("tonnage")
    name = "tonnage." + PACKAGES[package].replace("/", ".")
    kept = graph.find_downstream_modules(name, as_package=True) | graph.find_descendants(name)
    rooms = ("units", "api", "settings", "catalog", "engine", "sizing", "estimate", "manifests")
    for module in sorted(graph.modules - kept - {name}):
        if module.split(".")[1:2] and module.split(".")[1] in rooms:
            importlib.import_module(module)
    for plugin in importlib.metadata.entry_points(group="pytest11"):
        if plugin.name != "pytest_cov":
            plugin.load()
    gc.freeze()


@click.command()
@click.argument("package", type=click.Choice(sorted(PACKAGES)))
@click.option("--module", help="Mutate this one only.")
@click.option("--every", default=1, help="Take one mutant in so many.")
@click.option("--again", type=click.Path(path_type=Path, exists=True, resolve_path=True))
def main(package: str, *, module: str | None, every: int, again: Path | None) -> None:
    os.chdir(ROOT)
    profile = hypothesis.settings(  # an example that fails is enough: none is made smaller
        derandomize=True,
        deadline=None,
        max_examples=EXAMPLES,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.register_profile("mutation", profile)
    import_the_rest(package)
    failing, took_s = baseline(tests_of(package, ""))
    for test in failing:
        click.echo(f"left out, fails already: {test}")
    folder = ROOT / "operator/tonnage" / PACKAGES[package]
    paths = [path for path in sorted(folder.rglob("*.py")) if module in (None, path.stem)]
    lines = again.read_text().splitlines() if again else []
    names = {line.partition(" ")[2] for line in lines if line.startswith("operator/")}
    is_drawn = names.__contains__ if again else lambda name: not crc32(name.encode()) % every
    mutants = list(mutants_of(paths, is_drawn))
    limit_s = 10 + 4 * took_s
    click.echo(f"{len(mutants)} mutants; all tests take {took_s:.1f} s", err=True)
    survived, late = survivors(mutants, package, failing, limit_s)
    tried, missed = (Counter(each.path.stem for each in group) for group in (mutants, survived))
    click.echo(f"\n{'module':16}{'mutants':>9}{'killed':>9}{'survived':>9}")
    for name, number in (*sorted(tried.items()), ("all", len(mutants))):
        alive = missed[name] if name != "all" else len(survived)
        click.echo(f"{name:16}{number:9}{number - alive:9}{alive:9}")
    click.echo(f"{late} of those killed ran out of {limit_s:.0f} s")


if __name__ == "__main__":
    main()
