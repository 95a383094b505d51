"""Rules of this repository that no linter knows."""

import ast
import itertools
import operator
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "operator"
PREFIXES = {1000, 1024} | {10**power for power in (6, 9, 12, 15)} | {2**20, 2**30, 2**40}
BASES = {2, 10, 1000, 1024}
FIELD_BOUNDS = {"ge", "gt", "le", "lt", "max_length", "min_length"}


def modules():
    paths = sorted(SOURCES.rglob("*.py"))
    return [path for path in paths if path != SOURCES / "tonnage" / "units.py"]


def prefixes_in(tree):
    """Yield the line of every literal, or power of a literal, that is a unit prefix.

    The bound of a field or of a slice converts nothing and may be any number.
    """
    bounds = set(map(id, bounds_in(tree)))
    for node in ast.walk(tree):
        if id(node) in bounds:
            continue
        match node:
            case ast.Constant(value=int() | float() as value) if value in PREFIXES:
                yield node.lineno
            case ast.BinOp(left=ast.Constant(value=base), op=ast.Pow(), right=ast.Constant()) if (
                base in BASES
            ):
                yield node.lineno


def bounds_in(tree):
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=name, value=ast.UnaryOp(operand=value)) if name in FIELD_BOUNDS:
                yield value
            case ast.keyword(arg=name, value=value) if name in FIELD_BOUNDS:
                yield value
            case ast.Slice(upper=ast.Constant() as upper):
                yield upper


def test_the_operator_folder_is_not_a_package():
    # It would shadow the standard library's module for everything that runs in the root folder.
    assert not (SOURCES / "__init__.py").exists()
    assert Path(operator.__file__).parent != SOURCES


def test_only_units_knows_a_prefix():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        for line in prefixes_in(ast.parse(path.read_text()))
    ]

    assert found == [], "use tonnage.units"


@pytest.mark.parametrize(
    "expression", ["x * 1000", "size = 1024", "1e9", "x / 10**9", "2**30", "80 * 2 ** 30"]
)
def test_a_prefix_is_seen_however_it_is_written(expression):
    assert list(prefixes_in(ast.parse(expression))) == [1]


@pytest.mark.parametrize(
    "expression", ["Annotated[int, Field(ge=1, le=1000)]", "text[:1024]", "2**k"]
)
def test_a_bound_and_a_power_of_a_variable_are_no_prefixes(expression):
    assert list(prefixes_in(ast.parse(expression))) == []


WRITERS_OF_MEMORY = {
    "pods": {"measure/remembered"},
    "traffic": {"measure/remembered"},
    "sizing": {"assess", "report/status"},
    "goodput": {"assess", "tick"},
    "demand": {"decide/outlook", "tick"},
    "decided": {"assess", "decide/rollout", "report/status", "tick"},
    "writers": {"decide/writers"},
    "written": {"report/status", "write/writes"},
    "reported": {"report/status", "write/writes"},
}
"""Modules of ``control`` that may write each part of what is remembered of an object."""


def writers_of_memory():
    """Yield (part, module) of each call that makes a memory with another part."""
    control = SOURCES / "tonnage" / "control"
    for path in control.rglob("*.py"):
        module = str(path.relative_to(control).with_suffix(""))
        if module == "input/memory":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            made = " ".join(ast.unparse(each) for each in (node.func, *node.args[:1]))
            if re.fullmatch(r"ObjectMemory|replace .*(memory|recalled|_with_gain_since).*", made):
                yield from ((each.arg, module) for each in node.keywords)


COUNTED = (
    "pods|replicas|GPUs|nodes|objects|namespaces|requests|users|engines|ranks|windows|steps|seeds"
    "|models|layers|heads|groups|copies|stages|slots|blocks|files|rows|entries|classes|schedules"
)
"""Of which there may be one. Tokens and bytes are amounts."""
PLURAL = re.compile(rf" (?:(?!of |in |million )[\w-]+ )?(?:{COUNTED})\b(?!/)")
ONE = re.compile(rf"(?<![\w.,/-])1 (?:{COUNTED})\b(?!/)")
NEVER_1 = re.compile(r"significant\(.*|.*\.generation\b.*|([A-Z]\w*\.)*[A-Z][A-Z_]+")
"""With decimals ("1.00"), "Hopper GPUs", constants."""


def plurals_in(tree):
    """Yield the line of each number before a plural that is written without `count_of`."""
    for node in ast.walk(tree):
        match node:
            case ast.JoinedStr(values=parts):
                for number, words in itertools.pairwise(parts):
                    if is_plural_of(number, words):
                        yield number.lineno
            case ast.Constant(value=str(words)) if ONE.search(words):
                yield node.lineno


def is_plural_of(number, words):
    match number, words:
        case ast.FormattedValue(value=value), ast.Constant(value=text):
            return bool(PLURAL.match(text)) and not NEVER_1.fullmatch(ast.unparse(value))
    return False


def test_no_message_says_1_pods():
    engine = SOURCES / "tonnage" / "engine"  # compiled: what it refuses is told to its caller
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules()
        if path.is_relative_to(SOURCES / "tonnage") and not path.is_relative_to(engine)
        for line in plurals_in(ast.parse(path.read_text()))
    ]

    assert found == [], "use tonnage.units.count_of"


@pytest.mark.parametrize(
    "expression",
    [
        'f"{number} replicas"',
        'f"{len(pods):,} pods wait"',
        'f"{number} of {total:.0f} requests missed"',
        'f"{number} KV heads"',
        'f"{number} " f"replicas"',
        '"1 replicas"',
        'f"{name}: 1 steps"',
    ],
)
def test_a_plural_of_any_number_is_seen(expression):
    assert list(plurals_in(ast.parse(expression))) == [1]


@pytest.mark.parametrize(
    "expression",
    [
        'f"{count_of(number, word)} wait"',
        'f"{rate} requests/s"',
        'f"{share:.0%} of requests"',
        'f"{significant(mean)} requests"',
        'f"at most {MOST_GPUS} GPUs"',
        'f"{gpu.generation} GPUs"',
        '"11 replicas"',
    ],
)
def test_what_is_never_one_is_no_such_plural(expression):
    assert list(plurals_in(ast.parse(expression))) == []


def test_no_message_advises_to_install_a_package_that_is_not_published():
    advice = re.compile(r"(?:pip install |needs_extra\(\s*\")(?!-e '\.|\{)([\w' \[\].-]+)")
    advised = {
        word
        for path in modules()
        if path.is_relative_to(SOURCES)
        for words in advice.findall(path.read_text())
        for word in words.split()
    }
    published = {"pyarrow", "matplotlib"}  # tonnage is not: a checkout installs itself

    assert advised <= published


@pytest.mark.parametrize("part", WRITERS_OF_MEMORY)
def test_a_part_of_what_is_remembered_is_written_by_its_step(part):
    assert {module for name, module in writers_of_memory() if name == part} == WRITERS_OF_MEMORY[
        part
    ]


UNTRANSLATED = re.compile(
    r"\b(told|said|held|left|taken|gone|stands|whom|in the mean|who comes)\b", re.IGNORECASE
)
"""Words of this repository for which the field has a term, such as message, remaining or mean."""
MOST_UNTRANSLATED = {"definitions": 140, "messages": 11}
"""How many there are today: these numbers may only fall."""


def own_texts(tree, *, has_fields):
    """Return the ids of texts that only readers of the code see; not so those under fields."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    first = [body[0] for body in bodies if body]
    others = [] if has_fields else itertools.chain(*bodies)
    return {id(each.value) for each in [*first, *others] if isinstance(each, ast.Expr)}


def untranslated(path):
    """Yield (kind, word) of each such word in a name that is defined, or a text that users meet."""
    package = SOURCES / "tonnage"
    has_fields = path.is_relative_to(package / "api") or path == package / "settings.py"
    tree = ast.parse(path.read_text())
    own = own_texts(tree, has_fields=has_fields)
    for node in ast.walk(tree):
        name = ""
        match node:
            case ast.Constant(value=str(text)) if id(node) not in own:
                yield from (("messages", word) for word in UNTRANSLATED.findall(text))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                name = node.name
            case ast.arg():
                name = node.arg
            case ast.Name(ctx=ast.Store()):
                name = node.id
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", name)
        yield from (("definitions", word) for word in UNTRANSLATED.findall(words))


def test_words_that_the_field_has_a_term_for_only_become_fewer():
    found = [
        each for path in modules() for each in untranslated(path) if "tonnage_lab" not in path.parts
    ]
    counted = {kind: sum(each[0] == kind for each in found) for kind in MOST_UNTRANSLATED}

    more = {kind for kind, most in MOST_UNTRANSLATED.items() if counted[kind] > most}
    assert not more, f"use the field's term: {counted}"


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("def held_for(told): said = 1", ["definitions"] * 3),
        ('raise ValueError(f"{x} is left alone")', ["messages"]),
        ('def read():\n    """Return what is left."""', []),
        ("class GivenBack: pass", []),
    ],
)
def test_a_word_is_counted_where_it_is_defined_or_shown(tmp_path, source, kinds):
    path = tmp_path / "module.py"
    path.write_text(source)

    assert [kind for kind, _ in untranslated(path)] == kinds
