"""What a container gives to vLLM's server: its command, through Kubernetes and a shell, as words.

Texts are those of a tenant. What only a cluster or a shell knows stays as it is written, with its
``$``; where it may hide flags, nothing is guessed: ``CommandError`` names it.
"""

import ast
import itertools
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

MOST_CHARS: Final = 32_768
"""Of the words of one container, and of what is filled into them."""
TOO_LONG: Final = f"its command has more than {MOST_CHARS:,} characters"
MOST_OF_VARIABLES: Final = 4 * MOST_CHARS
"""Characters of all variables of one container that the kubelet fills in."""
MOST_WORDS: Final = 4_096
"""Of a container's command and args."""
MOST_NESTED: Final = 4
"""Shells and ``eval`` in one another."""
MOST_SCRIPTS: Final = 16
"""Of one container: those of its shells and of ``eval``."""
SHELLS: Final = frozenset({"sh", "bash", "ash", "dash", "zsh"})
MOST_ARITHMETIC: Final = 120
"""Characters of what is computed."""
MOST_SHOWN: Final = 80
"""Characters of a word in a message."""
BATCH_FLAGS: Final = {"--max-num-seqs", "--max-num-batched-tokens"}
API_SERVER: Final = "vllm.entrypoints.openai.api_server"
API_SERVER_FILE: Final = "vllm/entrypoints/openai/api_server.py"
COMMAND_LINE: Final = "vllm.entrypoints.cli.main"
TALKING: Final = frozenset({"echo", "printf"})
FEEDING: Final = frozenset({"xargs", "parallel"})
"""What gives further words to a program, from its input."""
KEYWORDS: Final = frozenset(
    {"if", "then", "elif", "else", "do", "while", "until", "{", "!", "time"}
)
BRANCHES: Final = frozenset({"if", "for", "while", "until", "case", "select", "||"})
SETTING_UP: Final = frozenset({"cd", "export", "mkdir", "set", "echo", "pip", "uv", "apt-get"})
"""What goes well, where another command follows by ``&&``."""
DECLARING: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
PASSING: Final = frozenset({"exec", "nohup", "env", "command", "builtin"})
CHANGING: Final = frozenset(
    {"for", "select", "read", "mapfile", "readarray", "let", "getopts", "unset"}
)
"""What gives variables that it names values that only a shell knows, or none."""
RUNNING: Final = frozenset({"eval", "source", "."})
"""What may change every variable."""
ABSENT: Final[Mapping[str, str]] = {"VLLM_ADDITIONAL_ARGS": ""}
"""Of KServe's templates: only a manifest sets it, no image, and its script takes it as empty."""

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_OF_KUBERNETES: Final = re.compile(r"\$\$|\$\(([-._A-Za-z0-9]+)\)")
_ASSIGNED: Final = re.compile(rf"({_NAME})(\+?)=(.*)", re.DOTALL)
_VARIABLE: Final = (
    rf"\$(?:(?P<name>{_NAME}|[@*])"
    rf"|\{{(?P<braced>{_NAME}|[@*])(?::?-(?P<otherwise>[^}}$`'\"]*))?\}})"
)
_PIECE: Final = re.compile(
    rf"""(?P<blank>(?:[ \t\r]|\\\n)+)
    |(?P<unread>\d*(?:<<|[<>]\()|\$['"])
    |(?P<redirect>\d*(?:>>|>\||>&|<&|<>|>|<)|&>>?)
    |(?P<end>;;|&&|\|\||\|&|[;&|\n()])
    |'(?P<single>[^']*)'
    |"(?P<double>(?:[^"\\]|\\.)*)"
    |\\(?P<escaped>.)
    |{_VARIABLE}
    |(?P<computed>\$\(|\$\{{|`)
    |(?P<plain>(?:[^\s'"\\$`;&|<>()])+|\$)""",
    re.VERBOSE | re.DOTALL,
)
_IN_QUOTES: Final = re.compile(
    rf"\\(?P<escaped>[$`\"\\\n])|{_VARIABLE}|(?P<plain>[^\\$]+|.)", re.DOTALL
)
_DEFAULTED: Final = re.compile(rf"\$\{{({_NAME})(?:\[[^]}}$]*\])?:?=")
_CHANGED: Final = re.compile(r"(?<![=!<>])=(?!=)|<<=|>>=|\+\+|--")
"""In arithmetic: an assignment."""
_FUNCTION: Final = re.compile(r"\([ \t]*\)|\bfunction\b")
_SHOWN: Final = re.compile(rf"\$(?:{_NAME}|[@*#?0-9]|\{{{_NAME}(?:\[[@*]\])?\}})")
_TERM: Final = re.compile(rf"\s*(?:\$?\{{?({_NAME})(?::-([0-9]+))?\}}?|[0-9]+|[-+*/%()])\s*")
OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
UNREAD: Final[Mapping[str, str]] = {
    "<<": "text of its own (<<)",
    "<(": "words from another command: <(...)",
    ">(": "words for another command: >(...)",
    "$'": "a quote of bash's own: $'...'",
    '$"': 'a quote of bash\'s own: $"..."',
}
MOST_DEEP: Final = 16
"""Lists and mappings in one another."""
_OPENING: Final = (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken,
                   yaml.BlockSequenceStartToken, yaml.BlockMappingStartToken)  # fmt: skip
_CLOSING: Final = (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken, yaml.BlockEndToken)
_SWITCHES: Final = ("--enable-", "--disable-", "--no-", "--enforce-eager", "--trust-remote-code",
                    "--async-scheduling", "--headless")  # fmt: skip
"""How flags begin that take no value."""


class CommandError(Exception):
    """Flags cannot be read; the message names what hides them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a container's command refers to."""

    config_maps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """``data`` of those that are known, by name."""
    volumes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the pod, by name."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """That a controller puts before those of the container."""
    is_vllm: bool = False
    """The image is vLLM's own, which starts its server."""
    asked: set[str] = field(default_factory=set)
    """ConfigMaps that the command was seen to refer to, known or not."""


def engine_words(container: Mapping[str, Any], around: Surroundings) -> tuple[str, ...]:
    """Return the words that the parser of ``vllm serve`` gets, without the name of the program.

    Raises:
        CommandError: naming what is not in the manifest, or what only a shell can tell.
    """
    variables = _variables(container, around)
    written = (container.get(key) for key in ("command", "args"))
    given = [[*map(str, each)] if isinstance(each, list | tuple) else [] for each in written]
    if sum(map(len, given)) > MOST_WORDS:
        raise CommandError(f"its command has more than {MOST_WORDS:,} words")
    room = _Room(MOST_CHARS)
    command, args = ([_expanded(word, variables, room) for word in words] for words in given)
    reading = _Reading()
    known = variables if "*" in variables else {**ABSENT, **variables}
    calls = list(_calls([*command, *args], known, 0, reading))
    if len(calls) > 1:
        raise CommandError(f"its command starts vLLM's server in {len(calls)} places")
    words = calls[0] if calls else _of_entrypoint(command, args, around)
    return tuple(_with_config(_checked(words, variables, reading), container, around))


@dataclass(slots=True)
class _Room:
    """Characters that may still be read."""

    chars: int
    too_long: str = TOO_LONG

    def take(self, count: int) -> None:
        self.chars -= count
        if self.chars < 0:
            raise CommandError(self.too_long)


@dataclass(slots=True)
class _Reading:
    """What all scripts of a container have in common."""

    room: _Room = field(default_factory=lambda: _Room(MOST_CHARS))
    scripts: int = 0
    changed_by: dict[str, str] = field(default_factory=dict)
    """What may have changed a variable, by its name; under ``*``: any."""
    own: set[str] = field(default_factory=set)
    """Variables of scripts that no other shell gets, for none is exported."""

    def begin(self) -> None:
        self.scripts += 1
        if self.scripts > MOST_SCRIPTS:
            raise CommandError(f"its command has more than {MOST_SCRIPTS} scripts")


def _of_entrypoint(command: Sequence[str], args: Sequence[str], around: Surroundings) -> list[str]:
    """Return what the image's own entrypoint hands on, or a program of somebody's own.

    Of the latter nobody knows what else it gives to vLLM, so the flags of a batch must be there.
    """
    words = [*command[1:], *args]
    is_vllm = not command and (around.is_vllm or any(word.startswith("--") for word in args))
    if is_vllm or {word.partition("=")[0].replace("_", "-") for word in words} >= BATCH_FLAGS:
        return words
    program = _name(command[0]) if command else "its image"
    raise CommandError(
        f"nothing in its command starts vLLM's server: what {program[:MOST_SHOWN]} gives to it is "
        f"unknown; start `vllm serve` there, or set {' and '.join(sorted(BATCH_FLAGS))}"
    )


def _name(program: str) -> str:
    return program.rpartition("/")[2]


# Kubernetes


def _variables(container: Mapping[str, Any], around: Surroundings) -> dict[str, str | None]:
    """Return the container's variables; None: one whose value only the cluster knows.

    Under the name ``*``: None where there may be others.
    """
    too_long = f"its variables that name others have more than {MOST_OF_VARIABLES:,} characters"
    room = _Room(MOST_OF_VARIABLES, too_long)
    found: dict[str, str | None] = dict(around.variables)
    source: Any
    for source in _mappings(container.get("envFrom")):
        data = _data(source.get("configMapRef"), around)
        prefix = str(source.get("prefix") or "")
        found |= {prefix + key: str(value) for key, value in (data or {}).items()}
        if data is None:
            found["*"] = None
    for each in _mappings(container.get("env")):
        name, source = str(each.get("name")), each.get("valueFrom")
        if source is None:
            value = each.get("value")
            text = "" if value is None else str(value)
            # One without ``$`` is that of the manifest, and takes no room.
            found[name] = _expanded(text, found, room) if "$" in text else text
            continue
        reference = source.get("configMapKeyRef") if isinstance(source, Mapping) else None
        key = reference.get("key") if isinstance(reference, Mapping) else None
        known = (_data(reference, around) or {}).get(str(key))
        found[name] = None if known is None else str(known)
    return found


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield the elements of a list that have fields."""
    for each in value if isinstance(value, list | tuple) else ():
        if isinstance(each, Mapping):
            yield each


def _data(reference: object, around: Surroundings) -> Mapping[str, Any] | None:
    if not isinstance(reference, Mapping):
        return None
    around.asked.add(str(reference.get("name")))
    return around.config_maps.get(str(reference.get("name")))


def _expanded(text: str, variables: Mapping[str, str | None], room: _Room) -> str:
    """Return a text with ``$(NAME)`` as the kubelet fills it in; what it does not know stays."""
    parts, at = [], 0
    for match in _OF_KUBERNETES.finditer(text):
        known = variables.get(match[1]) if match[1] else "$"
        parts += [text[at : match.start()], match[0] if known is None else known]
        at = match.end()
        room.take(len(parts[-2]) + len(parts[-1]))
    room.take(len(text) - at)
    return "".join([*parts, text[at:]])


# Shells


def _calls(
    words: Sequence[str], variables: Mapping[str, str | None], depth: int, reading: _Reading
) -> Iterator[list[str]]:
    """Yield the words after each call of vLLM's server."""
    if depth > MOST_NESTED:
        raise CommandError("its command has shells in shells in shells")
    bare = _without_prefix(words)
    first = _name(bare[0]) if bare else ""
    if first in SHELLS or first == "eval":
        own = dict.fromkeys(reading.own if first in SHELLS else ())
        variables = {**variables, **own, **_prefixed(words[: len(words) - len(bare)])}
    if first == "eval":
        yield from _script_calls(" ".join(bare[1:]), variables, depth, reading)
    elif first in SHELLS:
        script = next((at for at, each in enumerate(bare) if re.fullmatch("-[a-z]*c", each)), None)
        if script is not None and script + 1 < len(bare):
            inner = {**variables, "@": "\0".join(bare[script + 3 :])}
            yield from _script_calls(bare[script + 1], inner, depth, reading)
    elif first not in TALKING:
        yield from itertools.islice(_servers(bare), 1)


def _without_prefix(words: Sequence[str]) -> Sequence[str]:
    """Return a command without what runs it as it is, and variables of its own."""
    passed = itertools.takewhile(lambda it: it in PASSING or _ASSIGNED.fullmatch(it), words)
    return words[len(list(passed)) :]


def _prefixed(words: Sequence[str]) -> dict[str, str | None]:
    """Return what variables a command gets beside those of its script."""
    return {
        match[1]: None if match[2] or re.search("[$`]", match[3]) else match[3]
        for match in filter(None, map(_ASSIGNED.fullmatch, words))
    }


def _servers(words: Sequence[str]) -> Iterator[list[str]]:
    for here, (word, following) in enumerate(itertools.pairwise(words)):
        if (_name(word), following) == ("vllm", "serve") or (word, following) == ("-m", API_SERVER):
            begins = here + 2
        elif (word, following, *words[here + 2 : here + 3]) == ("-m", COMMAND_LINE, "serve"):
            begins = here + 3
        elif word.endswith(API_SERVER_FILE):
            begins = here + 1
        else:
            continue
        feeding = next((it for it in map(_name, words[:here]) if it in FEEDING), None)
        if feeding:
            raise CommandError(f"{feeding} gives words to vLLM's server that nobody else knows")
        yield list(words[begins:])


def _script_calls(
    script: str, variables: Mapping[str, str | None], depth: int, reading: _Reading
) -> Iterator[list[str]]:
    """Yield the calls of vLLM's server in a script; what it assigns before them is known."""
    reading.begin()
    known = dict(variables)
    inside = _assigned_inside(script)
    reading.changed_by |= inside
    known |= {name: None for name, by in inside.items() if by != ":=" or not known.get(name)}
    if _FUNCTION.search(script):
        known["@"] = None
    for found, may_branch in _commands(script, known, reading):
        words = list(itertools.dropwhile(KEYWORDS.__contains__, found))
        bare = _without_prefix(words)
        first = bare[0] if bare else ""
        if first in DECLARING or not bare:
            is_plain = first in DECLARING or all(map(_ASSIGNED.fullmatch, words))
            given = {match[1] for match in map(_ASSIGNED.fullmatch, words) if match}
            reading.own |= given - known.keys()
            if first == "export":
                reading.own -= {*given, *bare}
            _assign(words, known, inside, reading.room, may_branch=may_branch or not is_plain)
            if any(re.match("[$`]", word) for word in bare):
                _forget_all(first, known, reading)
        else:
            yield from _calls(words, known, depth + 1, reading)
            _change(bare, known, reading)
            if first == "unset" and not may_branch:
                for name in bare[1:]:
                    known.pop(name, None)


def _assigned_inside(script: str) -> dict[str, str]:
    """Return variables that ``${A:=...}`` or arithmetic assigns anywhere, and which of them."""
    found = dict.fromkeys((match[1] for match in _DEFAULTED.finditer(script)), ":=")
    at = script.find("((")
    while at >= 0:
        end = script.find("))", at)
        inner = script[at:end] if end >= 0 else script[at:]
        if _CHANGED.search(inner):
            found |= dict.fromkeys(re.findall(_NAME, inner), "((...))")
        at = script.find("((", end) if end >= 0 else -1
    return found


def _assign(
    words: Sequence[str],
    known: dict[str, str | None],
    unsure: Mapping[str, str],
    room: _Room,
    *,
    may_branch: bool,
) -> None:
    for match in filter(None, map(_ASSIGNED.fullmatch, words)):
        if match[1] == "IFS":
            raise CommandError("its script sets IFS, which decides how words are split")
        before = known.get(match[1], "") if match[2] else ""
        room.take(len(before or ""))
        is_known = before is not None and not may_branch and match[1] not in unsure
        is_known = is_known and not re.search("[$`]", match[3])
        is_known = is_known and not (match[2] and match[1] not in known)
        known[match[1]] = f"{before}{match[3]}" if is_known else None


def _change(words: Sequence[str], known: dict[str, str | None], reading: _Reading) -> None:
    """Forget variables that a command changes."""
    first, *others = words
    if first in RUNNING:
        if first != "eval" and others and others[0].endswith("bin/activate"):
            known["*"] = None  # of a virtual environment: it changes none but its own
        else:
            _forget_all(first, known, reading)
    elif first in CHANGING or (first == "printf" and "-v" in (others or [""])[0][:2]):
        named = others[:1] if first in {"for", "select"} else others
        if any(re.search("[$`]", word) for word in named):
            _forget_all(first, known, reading)
        for word in named:
            names = {*re.findall(_NAME, word), word[2:] if word.startswith("-") else word}
            known |= dict.fromkeys(names)
            reading.changed_by |= dict.fromkeys(names, first)
    elif first == "shift" or (first == "set" and _sets_words(others)):
        known["@"] = None
        reading.changed_by["@"] = first


def _sets_words(words: Sequence[str]) -> bool:
    """Tell whether ``set`` gives a script other words than its own."""
    pairs = itertools.pairwise(["", *words])
    return any(
        word in {"-", "--"} or not (word.startswith(("-", "+")) or re.fullmatch("[-+].*o", before))
        for before, word in pairs
    )


def _forget_all(by: str, known: dict[str, str | None], reading: _Reading) -> None:
    known.clear()
    known["*"] = None
    reading.changed_by["*"] = by


@dataclass(slots=True)
class _Line:
    """The words of a command while they are read."""

    room: _Room
    """Of all scripts of the container."""
    words: list[str] = field(default_factory=list)
    word: str | None = None
    """None: none has begun."""
    is_target: bool = False
    """The next word is where something is redirected to."""

    def add(self, text: str) -> None:
        self.room.take(len(text))
        self.word = (self.word or "") + text

    def split(self, text: str) -> None:
        """Add what a variable holds, which a shell splits where it is not in quotes."""
        first, *others = re.split(r"\s+", text)
        self.room.take(len(text) - len(first) - sum(map(len, others)))
        if first:
            self.add(first)
        for each in others:
            self.end()
            if each:
                self.add(each)

    def end(self) -> None:
        if self.word is not None and not self.is_target:
            self.words.append(self.word)
        if self.word is not None:
            self.room.take(1)
            self.is_target = False
        self.word = None


def _commands(
    script: str, variables: Mapping[str, str | None], reading: _Reading
) -> Iterator[tuple[list[str], bool]]:
    """Yield the words of each command of a script, and whether it may not be run.

    After a ``(`` nobody knows: it begins a list, a function, or a shell of its own.
    """
    line, may_branch = _Line(reading.room), False
    for piece in _pieces(script, line, variables):
        if piece.lastgroup == "end":
            line.end()
            words, line.words = line.words, []
            may_branch |= piece[0] == "("
            yield words, may_branch
            first = words[0] if words else ""
            is_sure = first in SETTING_UP or bool(_ASSIGNED.fullmatch(first))
            may_branch |= first in BRANCHES or piece[0] == "||"
            may_branch |= piece[0] == "&&" and not is_sure
        elif piece.lastgroup == "redirect":
            line.end()
            line.is_target = True
        elif piece.lastgroup == "blank":
            line.end()
        else:
            _add(line, piece, variables)
    line.end()
    yield line.words, may_branch


def _pieces(
    script: str, line: _Line, variables: Mapping[str, str | None]
) -> Iterator[re.Match[str]]:
    """Yield what a script consists of; what only a shell can compute goes to the line at once."""
    at = 0
    while at < len(script):
        if script[at] == "#" and line.word is None:
            at = script.find("\n", at)
            if at < 0:
                return
        piece = _PIECE.match(script, at)
        if piece is None or piece["unread"]:
            what = UNREAD[piece["unread"][-2:]] if piece else "a quote without an end"
            line_number = script.count("\n", 0, at) + 1
            raise CommandError(f"its script has {what}, in line {line_number}")
        at = piece.end()
        if piece.lastgroup == "computed":
            at = _after_computed(script, piece.start())
            line.add(_computed(script[piece.start() : at], variables))
        else:
            yield piece


def _add(line: _Line, piece: re.Match[str], variables: Mapping[str, str | None]) -> None:
    if piece["name"] or piece["braced"]:
        line.split(_value(piece, variables).replace("\0", " "))
    elif piece["double"] is not None:
        _add_quoted(line, piece["double"], variables)
    else:
        text = next(
            piece[kind] for kind in ("single", "escaped", "plain") if piece[kind] is not None
        )
        line.add("" if piece["escaped"] == "\n" else text)


def _add_quoted(line: _Line, text: str, variables: Mapping[str, str | None]) -> None:
    if text in {"$@", "${@}"} and variables.get("@") == "":
        return
    line.add("")
    for part in _IN_QUOTES.finditer(text):
        if part["name"] or part["braced"]:
            first, *others = _value(part, variables).split("\0")  # "$@" is words of its own
            line.add(first)
            for each in others:
                line.end()
                line.add(each)
        else:
            escaped = part["escaped"]
            line.add(part["plain"] or ("" if escaped == "\n" else escaped or ""))


def _value(piece: re.Match[str], variables: Mapping[str, str | None]) -> str:
    """Return what a variable holds; as it is written where nobody knows.

    One that nothing sets may be set by the image.
    """
    name = piece["name"] or piece["braced"]
    name = "@" if name == "*" else name
    if name not in variables and ("*" in variables or piece["otherwise"] is None):
        return piece[0]
    known = variables.get(name, "")
    return piece[0] if known is None else known or piece["otherwise"] or ""


def _after_computed(script: str, at: int) -> int:
    """Return where what begins here, and only a shell can compute, ends."""
    if script[at] == "`":
        return (script.find("`", at + 1) + 1) or len(script)
    opening = script[at + 1]
    closing, open_now = {"(": ")", "{": "}"}[opening], 0
    for here in range(at + 1, len(script)):
        open_now += (script[here] == opening) - (script[here] == closing)
        if open_now == 0:
            return here + 1
    return len(script)


def _computed(text: str, variables: Mapping[str, str | None]) -> str:
    """Return the number that ``$((...))`` is of numbers that are known; else the text as it is."""
    if not (text.startswith("$((") and text.endswith("))")) or len(text) > MOST_ARITHMETIC:
        return text
    parts: list[str] = []
    at, inner = 0, text[3:-2]
    while at < len(inner):
        term = _TERM.match(inner, at)
        value = term and (_operand(term, variables) if term[1] else term[0].strip())
        if term is None or value is None or not re.fullmatch(r"[0-9]{1,9}|[-+*/%()]?", value):
            return text
        parts, at = [*parts, "//" if value == "/" else value], term.end()
    try:
        return str(_number(ast.parse("".join(parts), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return text


def _operand(term: re.Match[str], variables: Mapping[str, str | None]) -> str | None:
    if term[1] in variables:
        known = variables[term[1]]
        return None if known is None else known or term[2]
    return None if "*" in variables else term[2]


def _number(tree: ast.expr) -> int:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=by, right=right) if type(by) in OPERATIONS:
            return OPERATIONS[type(by)](_number(left), _number(right))
        case _:
            raise ValueError("no arithmetic of numbers")


# vLLM


def _checked(
    words: Sequence[str], variables: Mapping[str, str | None], reading: _Reading
) -> Sequence[str]:
    """Refuse a word of unknown value that may hide flags: one that is no flag's value, nor a model.

    A ``$`` within a word is part of a value.
    """
    for here, word in enumerate(words):
        before = words[here - 1] if here else ""
        is_value = before.startswith("-") and "=" not in before
        is_value &= not before.replace("_", "-").startswith(_SWITCHES)
        is_value |= here == 0 and "MODEL" in word.upper() and "ARG" not in word.upper()
        if word.startswith(("$", "`")) and word != "$" and not is_value:
            shown, by = _shown(word, variables), reading.changed_by
            named = re.search(rf"{_NAME}|[@*]", shown)
            construct = by.get(named[0] if named else "*") or by.get("*")
            why = f" ({construct} in its script may have changed it)" if construct else ""
            raise CommandError(
                f"{shown} may hold flags, and its value is not in the manifest{why}: write it there"
            )
    return words


def _shown(word: str, variables: Mapping[str, str | None]) -> str:
    """Return what a word begins with, without anything that may be secret."""
    reference, known = _OF_KUBERNETES.match(word), _SHOWN.match(word)
    if reference and reference[1] in variables:
        return reference[0][:MOST_SHOWN]
    if known:
        return known[0][:MOST_SHOWN]
    braced = re.match(rf"\$\{{{_NAME}", word)
    if braced:
        return f"{braced[0][:MOST_SHOWN]}...}}"
    return "`...`" if word.startswith("`") else "$(...)" if word.startswith("$(") else "$..."


def _with_config(
    words: Sequence[str], container: Mapping[str, Any], around: Surroundings
) -> list[str]:
    """Return the words with those of a ``--config`` file before the others, which go above it.

    Sources:
        [vllm-source] utils/argparse_utils.py _pull_args_from_config, load_config_file.
    """
    if "--config" not in words or words[-1] == "--config":
        return list(words)
    at = list(words).index("--config")
    path = words[at + 1]
    text = _mounted(path, container, around)
    try:
        content = _of_yaml(text)
        flags = [*itertools.chain.from_iterable(_as_words(*each) for each in content.items())]
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise CommandError(f"--config {path[:MOST_SHOWN]} is no YAML of flags") from error
    return [*flags, *words[:at], *words[at + 2 :]]


def _of_yaml(text: str) -> Mapping[object, object]:
    """Return a file's flags; one with aliases may be far larger than its text."""
    if len(text) > MOST_CHARS:
        raise CommandError(f"its --config file has more than {MOST_CHARS:,} characters")
    depth = 0
    for token in yaml.scan(text):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if depth > MOST_DEEP or isinstance(token, yaml.AliasToken):
            raise CommandError("its --config file has aliases (*), or lists in lists in lists")
    content = yaml.safe_load(text)
    if not isinstance(content, Mapping):
        raise CommandError("its --config file has no flags")
    return content


def _as_words(key: object, value: object) -> list[str]:
    match value:
        case bool():
            return [f"--{key}" if value else f"--no-{key}"]
        case list():
            return [f"--{key}", *map(str, value)] if value else []
        case dict():
            return [f"--{key}", json.dumps(value)]
        case _:
            return [f"--{key}", str(value)]


def _mounted(path: str, container: Mapping[str, Any], around: Surroundings) -> str:
    """Return the text of a file that a ConfigMap holds."""
    for mount in _mappings(container.get("volumeMounts")):
        folder, inner = str(mount.get("mountPath", "")).rstrip("/"), mount.get("subPath")
        if path != folder and not path.startswith(f"{folder}/"):
            continue
        source = around.volumes.get(str(mount.get("name")), {}).get("configMap")
        name = source.get("name") if isinstance(source, Mapping) else None
        data = _data(source, around) or {}
        key = str(inner or "") if path == folder else path.removeprefix(f"{folder}/")
        items = source.get("items") if isinstance(source, Mapping) else None
        keys = {str(each.get("path")): str(each.get("key")) for each in _mappings(items)}
        text = data.get(keys.get(key, key))
        if isinstance(text, str):
            return text
        where = f"ConfigMap {name}" if name else "no ConfigMap"
        raise CommandError(
            f"--config {path[:MOST_SHOWN]} is in {where}, of which it cannot be read: write its "
            "flags as args"
        )
    raise CommandError(f"--config {path[:MOST_SHOWN]} is in the image: write its flags as args")
