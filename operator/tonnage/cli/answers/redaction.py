"""What a bug report must not hold: taken out of objects and of text before anything is written.

What a key or a flag calls a secret goes whatever its value is; what looks like a credential goes
wherever it stands. When in doubt it goes: a report without a harmless word is still a report.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tonnage.redaction import REDACTED
from tonnage.redaction import SECRET_NAME as SECRET_FLAG
from tonnage.manifests.names import SPEC_ANNOTATION

DROPPED: Final = frozenset(
    {"managedFields", "kubectl.kubernetes.io/last-applied-configuration", "stringData"}
)
"""The second holds the whole object again, as text."""
WHOLE: Final = frozenset({"envFrom", "imagePullSecrets", "secrets"})
"""Whatever they hold."""
OPENS: Final = "(?<!first)(?<!first_)(?<!output)(?<!output_)token"
"""A token that is counted, or waited for, is not one that opens anything."""
SECRET_KEY: Final = re.compile(
    r"secret|passw|credential|api[-_.]?key|private[-_.]?key|authorization|bearer"
    rf"|{OPENS}$",
    re.IGNORECASE,
)
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL)
_KNOWN: Final = re.compile(
    r"\beyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?"  # JSON web tokens, those of ServiceAccounts too
    r"|\b(?:hf|gh[pousr]|github_pat|glpat|xox[abps]|sk|pk|rk|nvapi)[_-][\w-]{8,}"
    r"|\bAKIA[0-9A-Z]{12,}",
)
_HEADER: Final = re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE)
_USER: Final = re.compile(r"(://)[^/\s@]+@")
_PAIR: Final = re.compile(
    rf"""([\w.-]*(?:{OPENS}|secret|passw(?:or)?d|api[-_]?key)["']?\s?[=:]\s?)"""
    r"""("[^"]*"|'[^']*'|[^\s"'&,;}\]]+)""",
    re.IGNORECASE,
)
_FLAG: Final = re.compile(
    r"(--[\w.-]*(?:token|secret|passw(?:or)?d|api[-_]?key)\s+)(?!--)\S+", re.IGNORECASE
)


def redact(value: Any) -> Any:
    """Return an object of the API without what is secret in it."""
    if isinstance(value, Mapping):
        if value.get("kind") == "Secret":
            return {"kind": "Secret", "data": REDACTED}
        return {key: _of_key(key, each) for key, each in value.items() if key not in DROPPED}
    if isinstance(value, list | tuple):
        return list(_of_list(value))
    return redacted_text(value) if isinstance(value, str) else value


def _of_key(key: str, value: Any) -> Any:
    if key in WHOLE or _is_secret(key, value):
        return REDACTED
    if key == SPEC_ANNOTATION and isinstance(value, str):
        return _of_json(value)
    if key == "env" and isinstance(value, list):
        return [_variable(each) for each in value]
    return redact(value)


def _is_secret(key: str, value: Any) -> bool:
    """Tell whether a key names a secret; a flag or a number behind such a word is none."""
    is_empty = value is None or isinstance(value, bool | int | float)
    names_one = key.lower().startswith("secret") or key.endswith("Secret")
    is_group = isinstance(value, Mapping) and not names_one
    return SECRET_KEY.search(key) is not None and not is_empty and not is_group


def _of_json(text: str) -> str:
    """Return an object that stands as text without what is secret in it."""
    try:
        return json.dumps(redact(json.loads(text)))
    except (ValueError, RecursionError):
        return REDACTED


def _variable(variable: Any) -> Mapping[str, str]:
    """Keep the name of a variable, which says that it is set."""
    name = variable.get("name") if isinstance(variable, Mapping) else None
    return {"name": redacted_text(str(name)), "value": REDACTED}


def _of_list(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the items; what follows a flag that names a secret is one."""
    is_after_flag = False
    for value in values:
        yield REDACTED if is_after_flag else redact(value)
        is_after_flag = isinstance(value, str) and SECRET_FLAG.match(value) is not None


def redacted_text(text: str) -> str:
    """Return text without what looks like a credential.

    >>> redacted_text("GET http://me:secret@host/?token=abc Authorization: Bearer abcdef123")
    'GET http://[redacted]@host/?token=[redacted] Authorization: Bearer [redacted]'
    >>> redacted_text("4000 prompt tokens, max_tokens=5")
    '4000 prompt tokens, max_tokens=5'
    """
    text = _PEM.sub(REDACTED, text)
    text = _KNOWN.sub(REDACTED, text)
    text = _HEADER.sub(rf"\1 {REDACTED}", text)
    text = _USER.sub(rf"\1{REDACTED}@", text)
    text = _PAIR.sub(rf"\1{REDACTED}", text)
    return _FLAG.sub(rf"\1{REDACTED}", text)
