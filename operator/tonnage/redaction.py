"""Text of others without what may be a secret: a word is written if it is known to be harmless.

Harmless are the words of ``words.txt``, of which messages of vLLM, the kubelet, the scheduler, the
API server and Tonnage consist, figures, and the names that a caller gives. A password is left out
because it is none of them, however it is written: patterns would have to foresee each way. What
follows a name such as ``token`` is left out even if it is harmless. The detectors of detect-secrets
read the long words that remain. Lines are cut first, so the time grows with the length of the text
and no faster; and the same text gives the same result.
"""

import re
from collections.abc import Iterator, Mapping, Set
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple

from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
from detect_secrets.plugins.base import BasePlugin, RegexBasedDetector
from detect_secrets.plugins.ip_public import IPPublicDetector

from tonnage.units import KIB, one_line

REDACTED: Final = "[redacted]"
MOST_LINE_CHARS: Final = KIB  # the rest of a line is left out
MOST_WORD_CHARS: Final = 200
MOST_MARKS: Final = 4  # different ones, in a word without a letter or a digit
MOST_DIGITS: Final = 16  # of a word
MOST_WHOLE_DIGITS: Final = 9
"""Of a whole number: more may be a code, and amounts of bytes are written with a unit."""
WATCHED_WORDS: Final = 8  # after the name of a secret: a number among them may be it
LEAST_HUMP_CHARS: Final = 3  # of the words in a name such as that of a class, but one
LEAST_DETECTED_CHARS: Final = 16
MOST_NAME_CHARS: Final = 253
NAMING: Final = frozenset(
    {
        "name",
        "namespace",
        "image",
        "id",
        "claimName",
        "secretName",
        "serviceAccountName",
        "nodeName",
    }
)
"""Fields of an object whose values a message repeats and a reader needs."""
_OPENS: Final = (
    r"passw|passphrase|passcode|(?<!imagepull)secret|credential|authorization|bearer|hmac|"
    r"api[-_. ]?key|"
    r"(?:access|auth|account|client|encryption|signing|service|ssh|master|db|private)[-_. ]?key|"
    r"token(?<!first.token)(?<!firsttoken)(?<!output.token)(?<!outputtoken)(?<!per.token)"
    r"(?!s|i[zs]|_?ids?(?![a-z]))|(?:pass|pwd|pw|pin|otp|basic)(?![a-z])(?<![a-z]pass)"
    r"(?<![a-z]pwd)(?<![a-z]pw)(?<![a-z]pin)(?<![a-z]otp)(?<![a-z]basic)"
)
"""In small letters. What is called so opens something, or may; a token that is counted does not."""
SECRET_NAME: Final = re.compile(
    rf"(?P<opens>{_OPENS})|(?:account|auth|cert|cookie|jwt|key|login|nonce|private|psk|salt|session|"
    r"sid|sig|signature|user|username)"
    r"(?![a-z]|_(?:value|cache|size|len|head))(?<![a-z]key)(?<![a-z]sig)(?<![a-z]user)"
)
"""Of what may be a secret: what is assigned to it is left out."""
_ASSIGNED: Final = re.compile(rf"""(?:{SECRET_NAME.pattern})[\w.\-]*["'\]\\]*[=:]+""")
CLAUSE: Final = ",;}])"
QUOTES: Final = ("'", '"', "`")
COUNTED: Final = frozenset(
    {"per", "first", "output", "prompt", "next", "each", "pad", "eos", "bos", "anonymous", "oauth"}
)
"""Before ``token``: one that is counted, and opens nothing."""
_SPACE: Final = re.compile(r"(\s+)")
_SHORT_FLAG: Final = re.compile(r"-[A-Za-z]")
_PARTS: Final = re.compile(r"""[=/:,|()\[\]{}<>"'`\\]+""")
_ODD: Final = re.compile(r"[A-Za-z0-9]\W*[!@#$^&*;?~+]|[!@#^&*;?+]\W*[A-Za-z0-9]|%\w")
"""Marks that no word of a message has inside it, and many passwords have."""
_RUN: Final = re.compile(r"[A-Za-z0-9]+")
_HUMP: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CLASS: Final = re.compile(r"(?:[A-Za-z]{3,}\d{1,2})?[A-Za-z]+")
"""Of words in one, as names of classes and of fields are; Qwen3ForCausalLM has a figure too."""
_FIGURE: Final = re.compile(r"[+-]?\d{1,15}\.\d{1,20}(?:e[+-]?\d{1,3})?")
_AMOUNT: Final = re.compile(
    r"\d{1,9}(?:[kKMGTP]i?[Bb]?|[num]?s|m|h|x|B|th|st|nd|rd|GPU|\d*x\d{1,6})|[xev]\d{1,4}|"
    r"(?i:dp|tp|pp|ep|rank|gpu|cuda|layer|worker|node|eth|ib|mlx|stage|core)\d{1,3}"
)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ][\d:.,]{5,16}(?:Z|[+-]\d\d:?\d\d)?)?")
_REPEATED: Final = re.compile(rf"{re.escape(REDACTED)}(?:\s+{re.escape(REDACTED)})+")
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/:+-]*[A-Za-z0-9])?")
_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")
_SAID: Final = re.compile(
    r"(?:webhook|[Uu]ser|[Pp]olicy|binding|configmap|persistentvolumeclaim|serviceaccount|"
    r"conflicts? with) "
    r"[\"']([a-z0-9][a-z0-9.:-]{0,252})[\"']|quota: ([a-z0-9][a-z0-9.-]{0,252}),"
    r"|taint \{([\w./-]{1,100})(?:: ([\w./-]{0,63}))?\}"
)
"""A name, or a taint, as the API server, the kubelet or the scheduler quotes it."""
_RANDOM: Final = re.compile(
    rf"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{{16}}|\d{{{MOST_WHOLE_DIGITS + 1}}}"
)


def redacted(text: str, known: Set[str] = frozenset()) -> str:
    """Return text without what may be a secret; ``known``: names that are none.

    >>> redacted("Error 401: token=abc-17 for http://me:pw@hub/x, ask kim", {"hub"})
    'Error 401: token=[redacted] for [redacted], ask [redacted]'
    >>> redacted("4,000 prompt tokens, max_num_seqs=48: login with -p 1234")
    '4,000 prompt tokens, max_num_seqs=48: login with [redacted]'
    """
    reader = _Reader(known)
    return "\n".join(line and reader.redact(line) for line in text.splitlines())


def names_secret_last(line: str) -> bool:
    """Tell whether a line ends with the name of a secret, which the next line may be.

    >>> names_secret_last("Enter your PIN is:"), names_secret_last("ValueError: no tokens")
    (True, False)
    """
    bare = line.lower().rstrip(" :=").removesuffix(" is")
    return any(found.end() == len(bare) for found in SECRET_NAME.finditer(bare))


def names_said(text: str) -> frozenset[str]:
    """Return what Kubernetes says is a name: of a webhook, a quota, a claim, a taint.

    >>> sorted(names_said('admission webhook "a.b-c" denied it; untolerated taint {pool: x1}'))
    ['a.b-c', 'pool', 'x1']
    """
    found = _SAID.finditer(text[:MOST_LINE_CHARS])
    names = (each for match in found for each in match.groups() if each)
    return frozenset(
        each for each in names if is_name(each) and (":" not in each or each.startswith("system:"))
    )


def redacted_line(text: str, most: int, known: Set[str] = frozenset()) -> str:
    """Return the same in one printable line of so many characters."""
    return one_line(redacted(one_line(text[:MOST_LINE_CHARS], MOST_LINE_CHARS), known), most)


class _Word(NamedTuple):
    """What a word is, wherever it stands."""

    lead: str
    core: str
    tail: str
    names: Literal["", "something", "key"]
    """Whether it names what may be a secret, or what opens something."""
    num_named: int
    """Characters up to a value that is assigned to such a name in the word; 0: none is."""
    is_harmless: bool


class _Reader:
    """Goes from word to word, and remembers what the next ones may be."""

    def __init__(self, known: Set[str]) -> None:
        self._known = known
        self._until: str | None = None
        """Words are left out up to one with any of these; with none only the next one."""
        self._is_begun, self._watched, self._before = False, 0, ""

    def redact(self, line: str) -> str:
        self._is_begun = False
        pieces = _SPACE.split(line[:MOST_LINE_CHARS])
        pieces[::2] = [word and self._word(word) for word in pieces[::2]]
        if self._until != CLAUSE or self._is_begun:  # else the value is on the next line
            self._until, self._watched = None, 0
        return _REPEATED.sub(REDACTED, "".join(pieces))

    def _word(self, text: str) -> str:
        if self._until is not None:
            return self._left_out(text)
        if len(text) > MOST_WORD_CHARS:
            return REDACTED
        word = _read(text)
        if word.core in self._known and not self._watched:
            return text
        is_counted = self._before in COUNTED and "token" in word.core.lower()
        if word.num_named and not is_counted:
            return self._assigned(text[: word.num_named], text[word.num_named :])
        if word.names or self._watched or word.core.startswith("-"):
            self._follow(word, "" if is_counted else word.names)
        self._before = word.core
        return f"{word.lead}{self._judged(word.core, is_harmless=word.is_harmless)}{word.tail}"

    def _assigned(self, name: str, value: str) -> str:
        """Leave out a value, with what follows it within its quotes or its clause."""
        bare = name.rstrip("=:")
        lead, core, tail = _split(bare)
        shown = self._judged(core, is_harmless=_is_harmless(core))
        self._until = CLAUSE if not value or value.startswith("\\") else ""
        end = self._left_out(value) if value else ""
        return f"{lead}{shown}{tail}{name[len(bare) :]}{end}"

    def _left_out(self, word: str) -> str:
        bare, self._is_begun = word.lstrip("\\"), True
        if self._until not in QUOTES and bare[:1] in QUOTES:
            self._until, bare = bare[0], bare[1:]
        end = bare if self._until in QUOTES else bare[-1:]
        if not self._until or not set(self._until).isdisjoint(end):
            self._until, self._watched = None, 0
        return REDACTED

    def _follow(self, word: _Word, names: str) -> None:
        """Note what the next words may be, after this one."""
        self._watched = max(0, self._watched - 1)
        is_flag = word.core.startswith("-")
        if is_flag and (names or _SHORT_FLAG.fullmatch(word.core)):
            self._until = ""
        elif (names or self._watched) and set(word.tail or word.core) & {":", "="}:
            self._until = CLAUSE
        elif names == "key":
            self._watched = WATCHED_WORDS

    def _judged(self, core: str, *, is_harmless: bool) -> str:
        if core in self._known:
            return core
        if self._watched and any(map(str.isdigit, core)):
            return REDACTED
        if is_harmless or (self._known and self._is_known(core)):
            return core
        shown, mark, _ = core.partition("?" if "?" in core else "=")
        if not mark or not shown:
            return REDACTED
        return f"{self._judged(shown, is_harmless=_is_harmless(shown))}{mark}{REDACTED}"

    def _is_known(self, core: str) -> bool:
        """Tell whether a word consists of names that are known and of harmless words."""
        parts = _PARTS.split(core)
        return "@" not in core and all(part in self._known or _is_harmless(part) for part in parts)


@lru_cache(maxsize=16 * KIB)
def _read(text: str) -> _Word:
    lead, core, tail = _split(text)
    lower = text.lower()
    found = SECRET_NAME.search(lower)
    assigned = _ASSIGNED.search(lower, found.start()) if found and len(lower) == len(text) else None
    return _Word(
        lead,
        core,
        tail,
        names="" if not found else "key" if found["opens"] else "something",
        num_named=assigned.end() if assigned else 0,
        is_harmless=_is_harmless(core),
    )


def _split(word: str) -> tuple[str, str, str]:
    """Return what stands around a word, and it."""
    core = word.lstrip("[({<\"'`")
    lead, bare = word[: len(word) - len(core)], core.rstrip("])}>\"'`.,:;!?")
    return lead, bare, core[len(bare) :]


def _is_harmless(core: str) -> bool:
    runs = _RUN.findall(core)
    if _ODD.search(core):
        return False
    if not runs or not core.isascii():
        return len(set(core)) <= MOST_MARKS and not any(map(str.isalnum, core))
    if core[0] in "+-0123456789" and (_MOMENT.fullmatch(core) or _FIGURE.fullmatch(core)):
        return True
    return all(map(_is_word, runs)) and not _is_like_secret(core)


def _is_like_secret(core: str) -> bool:
    """Tell whether harmless words together are too many digits, or a password of such words.

    Letters alone are no credential that detectors know: those have random letters.
    """
    num_digits = sum(map(str.isdigit, core))
    if num_digits > MOST_DIGITS or (num_digits and _is_detected(core)):
        return True
    secret = SECRET_NAME.search(core.lower())
    is_made = bool(num_digits) or ("-" in core and not core.startswith("--"))
    return bool(secret and secret["opens"] and is_made)


def _is_word(run: str) -> bool:
    """Tell whether letters and digits are a known word, a figure, or a name made of such."""
    if run.isdigit():
        return len(run) <= MOST_WHOLE_DIGITS
    if run.lower() in _words():
        return True
    if run.isalpha() and (run.islower() or run.isupper()):
        return False  # one word, as nearly all of them
    if _AMOUNT.fullmatch(run):
        return True
    humps = _HUMP.findall(run)
    num_short = sum(len(hump) < LEAST_HUMP_CHARS for hump in humps)
    is_class = _CLASS.fullmatch(run) is not None and bool(humps[1:]) and num_short <= 1
    return is_class and all(hump.lower() in _words() for hump in humps)


def _is_detected(word: str) -> bool:
    return len(word) >= LEAST_DETECTED_CHARS and any(each.search(word) for each in _detectors())


@cache
def _words() -> frozenset[str]:
    return frozenset(files("tonnage").joinpath("words.txt").read_text(encoding="utf-8").split())


@cache
def _detectors() -> tuple[re.Pattern[str], ...]:
    """Return the patterns of credentials. The public address of a server is none."""
    found: Mapping[str, type[BasePlugin]] = get_mapping_from_secret_type_to_class()
    plain = [each for each in found.values() if issubclass(each, RegexBasedDetector)]
    return tuple(
        pattern for each in plain if each is not IPPublicDetector for pattern in each().denylist
    )


def is_name(text: str) -> bool:
    """Tell whether a text can be the name of an object, an image, a model or a variable.

    >>> is_name("meta-llama/Llama-3.1-8B"), is_name("hf_" + "a1" * 17), is_name("a:b@host")
    (True, False, False)
    """
    bare = _DIGEST.sub("", text)
    is_short = len(bare) <= MOST_NAME_CHARS and _NAME.fullmatch(bare) is not None
    return is_short and not _RANDOM.search(bare) and not _is_detected(bare)


def names_in(value: Any) -> Iterator[str]:
    """Yield the names that an object gives to what it consists of and refers to."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(each, str) and key in NAMING and is_name(each):
                yield each
            yield from names_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from names_in(each)
