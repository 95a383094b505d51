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
MOST_NESTED: Final = 4
"""Shells and ``eval`` in one another."""
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
KEYWORDS: Final = frozenset({"if", "then", "elif", "else", "do", "while", "until", "{", "!"})
BRANCHES: Final = frozenset({"if", "for", "while", "until", "case", "||"})
SETTING_UP: Final = frozenset({"cd", "export", "mkdir", "set", "echo", "pip", "uv", "apt-get"})
"""What goes well, where another command follows by ``&&``."""
DECLARING: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
PASSING: Final = frozenset({"exec", "nohup", "env", "command"})

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_OF_KUBERNETES: Final = re.compile(r"\$\$|\$\(([-._A-Za-z0-9]+)\)")
_ASSIGNED: Final = re.compile(rf"({_NAME})(\+?)=(.*)", re.DOTALL)
_VARIABLE: Final = (
    rf"\$(?:(?P<name>{_NAME}|[@*])"
    rf"|\{{(?P<braced>{_NAME}|[@*])(?::?-(?P<otherwise>[^}}$`'\"]*))?\}})"
)
_PIECE: Final = re.compile(
    rf"""(?P<blank>(?:[ \t\r]|\\\n)+)
    |(?P<redirect>\d*(?:>>|>\||>&|<&|<<|<>|>|<)|&>>?)
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
_TERM: Final = re.compile(rf"\s*(?:\$?\{{?({_NAME})(?::-([0-9]+))?\}}?|[0-9]+|[-+*/%()])\s*")
OPERATIONS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
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


def engine_words(container: Mapping[str, Any], around: Surroundings) -> tuple[str, ...]:
    """Return the words that the parser of ``vllm serve`` gets, without the name of the program.

    Raises:
        CommandError: naming what is not in the manifest, or what only a shell can tell.
    """
    variables = _variables(container, around)
    command, args = (
        [_expanded(word, variables) for word in _texts(container.get(key))]
        for key in ("command", "args")
    )
    if sum(map(len, itertools.chain(command, args))) > MOST_CHARS:
        raise CommandError(TOO_LONG)
    calls = list(_calls([*command, *args], variables, 0))
    if len(calls) > 1:
        raise CommandError(f"its command starts vLLM's server in {len(calls)} places")
    words = calls[0] if calls else _of_entrypoint(command, args, around)
    return tuple(_with_config(_checked(words), container, around))


def _texts(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list | tuple) else []


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
            found[name] = _expanded("" if value is None else str(value), found)
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
    name = reference.get("name") if isinstance(reference, Mapping) else None
    return around.config_maps.get(str(name))


def _expanded(text: str, variables: Mapping[str, str | None]) -> str:
    """Return a text with ``$(NAME)`` as the kubelet fills it in; what it does not know stays."""
    parts, at, room = [], 0, MOST_CHARS
    for match in _OF_KUBERNETES.finditer(text):
        known = variables.get(match[1]) if match[1] else "$"
        parts += [text[at : match.start()], match[0] if known is None else known]
        at, room = match.end(), room - len(parts[-1])
        if room < 0:
            raise CommandError(TOO_LONG)
    return "".join([*parts, text[at:]])


# Shells


def _calls(
    words: Sequence[str], variables: Mapping[str, str | None], depth: int
) -> Iterator[list[str]]:
    """Yield the words after each call of vLLM's server."""
    if depth > MOST_NESTED:
        raise CommandError("its command has shells in shells in shells")
    passed = itertools.takewhile(lambda it: it in PASSING or _ASSIGNED.fullmatch(it), words)
    words = words[len(list(passed)) :]
    first = _name(words[0]) if words else ""
    if first == "eval":
        yield from _script_calls(" ".join(words[1:]), variables, depth)
    elif first in SHELLS:
        script = next((at for at, each in enumerate(words) if re.fullmatch("-[a-z]*c", each)), None)
        if script is not None and script + 1 < len(words):
            given = "\0".join(words[script + 3 :])
            yield from _script_calls(words[script + 1], {**variables, "@": given}, depth)
    elif first not in TALKING:
        yield from itertools.islice(_servers(words), 1)


def _servers(words: Sequence[str]) -> Iterator[list[str]]:
    for here, (word, following) in enumerate(itertools.pairwise(words)):
        rest = list(words[here + 2 :])
        if (_name(word), following) == ("vllm", "serve") or (word, following) == ("-m", API_SERVER):
            yield rest
        elif (word, following) == ("-m", COMMAND_LINE) and rest[:1] == ["serve"]:
            yield rest[1:]
        elif word.endswith(API_SERVER_FILE):
            yield [following, *rest]


def _script_calls(
    script: str, variables: Mapping[str, str | None], depth: int
) -> Iterator[list[str]]:
    """Yield the calls of vLLM's server in a script; what it assigns before them is known."""
    known = dict(variables)
    for found, may_branch in _commands(script, known):
        words = list(itertools.dropwhile(KEYWORDS.__contains__, found))
        first = words[0] if words else ""
        if first in {"for", "read"}:
            known |= dict.fromkeys(words[1:])
        elif first in {"source", "."}:
            known["*"] = None
        elif first in DECLARING or all(map(_ASSIGNED.fullmatch, words)):
            for match in filter(None, map(_ASSIGNED.fullmatch, words)):
                before = known.get(match[1], "") if match[2] else ""
                is_known = before is not None and not may_branch and not re.search("[$`]", match[3])
                known[match[1]] = f"{before}{match[3]}" if is_known else None
        else:
            yield from _calls(words, known, depth + 1)


@dataclass(slots=True)
class _Line:
    """The words of a command while they are read."""

    words: list[str] = field(default_factory=list)
    word: str | None = None
    """None: none has begun."""
    is_target: bool = False
    """The next word is where something is redirected to."""
    room: int = MOST_CHARS

    def add(self, text: str) -> None:
        self.room -= len(text)
        if self.room < 0:
            raise CommandError(TOO_LONG)
        self.word = (self.word or "") + text

    def split(self, text: str) -> None:
        """Add what a variable holds, which a shell splits where it is not in quotes."""
        first, *others = re.split(r"\s+", text)
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
            self.is_target = False
        self.word = None


def _commands(script: str, variables: Mapping[str, str | None]) -> Iterator[tuple[list[str], bool]]:
    """Yield the words of each command of a script, and whether it may not be run."""
    line, may_branch = _Line(), False
    for piece in _pieces(script, line, variables):
        if piece.lastgroup == "end":
            line.end()
            words, line.words = line.words, []
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
        if piece is None or (piece.lastgroup == "redirect" and "<<" in piece[0]):
            what = "text of its own (<<)" if piece else "a quote without an end"
            raise CommandError(f"its script has {what}: {script[at : at + MOST_SHOWN]!r}")
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
    if text in {"$@", "${@}"} and variables.get("@", "") == "":
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
    """Return what a variable holds; as it is written where nobody knows."""
    name = piece["name"] or piece["braced"]
    known = variables.get("@" if name in "@*" else name, "")
    is_unknown = known is None or (name not in variables and "*" in variables)
    return piece[0] if is_unknown else known or piece["otherwise"] or ""


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
        value = term and (variables.get(term[1]) or term[2] if term[1] else term[0].strip())
        if term is None or value is None or not re.fullmatch(r"[0-9]{1,9}|[-+*/%()]?", value):
            return text
        parts, at = [*parts, "//" if value == "/" else value], term.end()
    try:
        return str(_number(ast.parse("".join(parts), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return text


def _number(tree: ast.expr) -> int:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=by, right=right) if type(by) in OPERATIONS:
            return OPERATIONS[type(by)](_number(left), _number(right))
        case _:
            raise ValueError("no arithmetic of numbers")


# vLLM


def _checked(words: Sequence[str]) -> Sequence[str]:
    """Refuse a word of unknown value that may hide flags: one that is no flag's value, nor a model.

    A ``$`` within a word is part of a value.
    """
    for here, word in enumerate(words):
        before = words[here - 1] if here else ""
        is_value = before.startswith("-") and "=" not in before
        is_value &= not before.replace("_", "-").startswith(_SWITCHES)
        is_value |= here == 0 and "MODEL" in word.upper() and "ARG" not in word.upper()
        if word.startswith(("$", "`")) and word != "$" and not is_value:
            raise CommandError(
                f"{word[:MOST_SHOWN]} may hold flags, and its value is not in the manifest: write "
                "it there"
            )
    return words


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
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CommandError(f"--config {path[:MOST_SHOWN]} is no YAML") from error
    if not isinstance(content, Mapping):
        raise CommandError(f"--config {path[:MOST_SHOWN]} has no flags")
    return [*itertools.chain.from_iterable(_as_words(*each) for each in content.items()),
            *words[:at], *words[at + 2 :]]  # fmt: skip


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
        key = str(inner or "") if path == folder else path.removeprefix(f"{folder}/")
        items = source.get("items") if isinstance(source, Mapping) else None
        keys = {str(each.get("path")): str(each.get("key")) for each in _mappings(items)}
        text = around.config_maps.get(str(name), {}).get(keys.get(key, key))
        if isinstance(text, str):
            return text
        where = f"ConfigMap {name}" if name else "no ConfigMap"
        raise CommandError(
            f"--config {path[:MOST_SHOWN]} is in {where}, which is not read here: write its flags "
            "as args"
        )
    raise CommandError(f"--config {path[:MOST_SHOWN]} is in the image: write its flags as args")
