"""The files of a bug report: what was read, redacted, and what it is."""

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from tonnage.cli.answers.redaction import redact, redacted_text
from tonnage.cli.read.evidence import Evidence

MODE: Final = 0o600


def files_of(evidence: Evidence, about: Mapping[str, Any]) -> dict[str, str]:
    """Return {name: text} of every file; the only way from what was read to what is written."""
    problems = [redacted_text(each) for each in evidence.problems]
    first = {**about, "not read": problems}
    return {
        "about.yaml": _yaml([first]),
        **{name: _yaml(redact(found)) for name, found in sorted(evidence.objects.items())},
        **{name: redacted_text(text) for name, text in sorted(evidence.texts.items())},
    }


def _yaml(objects: Sequence[Any]) -> str:
    text: str = yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True)
    return text


def archive(files: Mapping[str, str], *, folder: str, now_s: float) -> bytes:
    """Return a tar.gz of files in one folder."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mtime, member.mode = len(content), int(now_s), MODE
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), mtime=int(now_s))
