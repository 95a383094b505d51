"""A model's files on the Hugging Face hub, asked for only when the user says so."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urljoin, urlsplit

from tonnage.catalog.config.keys.decoder import ModelConfigError
from tonnage.catalog.gpu import CatalogError, UnknownModelError
from tonnage.catalog.models import MAX_CONFIG_BYTES, built_in_model, with_second_file
from tonnage.catalog.safetensors import (
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    Checkpoint,
    CheckpointError,
    Tensor,
    files_without_index,
    header_end,
    join_files,
    json_object,
    read_header,
    read_index,
)
from tonnage.cli.console import Failure, failing
from tonnage.cli.read.manifest import objects
from tonnage.units import KIB, MIB, count_of

if TYPE_CHECKING:
    from requests import Response, Session

INDEX: Final = "model.safetensors.index.json"
MAX_INDEX_BYTES: Final = MAX_HEADER_BYTES
MAX_FILES: Final = 500
"""The largest checkpoints have fewer than two hundred."""
MAX_HEADERS_BYTES: Final = 2 * MAX_HEADER_BYTES
"""Of all files together: a model of 384 experts per layer has a tenth of it."""


Beginning = tuple[bytes, int | None]
"""The first bytes of a file, and its size; None: the server does not say."""


def read_checkpoint(
    files: "Folder | HubFiles", *, max_headers_bytes: int = MAX_HEADERS_BYTES
) -> Checkpoint:
    """Return the tensors of a checkpoint: of the files that its index lists, else of all.

    Raises:
        CheckpointError: names the file and what is wrong with it.
    """
    listed = files.whole(INDEX, max_bytes=MAX_INDEX_BYTES)
    if listed is not None and len(listed) > MAX_INDEX_BYTES:
        raise CheckpointError(f"{INDEX}: larger than {MAX_INDEX_BYTES} bytes")
    index = None if listed is None else read_index(listed, file=INDEX)
    names = files_without_index(files.names()) if index is None else index.files
    if len(names) > MAX_FILES:
        raise CheckpointError(f"{count_of(len(names), 'file')}; at most {MAX_FILES} are read")
    headers: dict[str, tuple[Tensor, ...]] = {}
    remaining_bytes = max_headers_bytes
    for name in names:
        content, file_bytes = _beginning(files, name)
        remaining_bytes -= len(content)
        if remaining_bytes < 0:
            raise CheckpointError(
                f"{name}: the headers up to here have more than {max_headers_bytes} bytes"
            )
        headers[name] = read_header(content, file=name, file_bytes=file_bytes)
    return join_files(headers, index=index)


def _beginning(files: "Folder | HubFiles", name: str) -> Beginning:
    """Return a file up to the end of its header."""
    content, file_bytes = files.beginning(name, num_bytes=LENGTH_BYTES)
    end = header_end(content, file=name)
    if len(content) < end:
        content, file_bytes = files.beginning(name, num_bytes=end)
    return content[:end], file_bytes


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint on disk; its files may be links, as in the cache of the hub's own client."""

    path: Path

    def names(self) -> Iterable[str]:
        return [path.name for path in self.path.iterdir()]

    def whole(self, name: str, *, max_bytes: int) -> bytes | None:
        """Return a file up to one byte more than allowed; None: there is no such file."""
        path = self.path / name
        return self._read(name, max_bytes + 1) if path.exists() or path.is_symlink() else None

    def beginning(self, name: str, *, num_bytes: int) -> Beginning:
        """Return so many bytes from the start of a file, or as many as it has."""
        return self._read(name, num_bytes), (self.path / name).stat().st_size

    def _read(self, name: str, num_bytes: int) -> bytes:
        path = self.path / name
        if not path.is_file():  # nor a pipe, which would hang
            raise CheckpointError(f"{name}: there is no such file")
        with path.open("rb") as file:
            return file.read(num_bytes)


def checkpoint_in(folder: Path) -> Checkpoint:
    """Return the tensors of the checkpoint in a folder.

    Raises:
        Failure: names the file and what is wrong with it.
    """
    try:
        return read_checkpoint(Folder(folder))
    except CheckpointError as error:
        raise Failure(f"--checkpoint {folder}: {error}") from error
    except OSError as error:
        raise Failure(f"--checkpoint {error.filename or folder}: {error.strerror}") from error


PUBLIC_HUB: Final = "https://huggingface.co"
STORES: Final = ("huggingface.co", "hf.co")
"""Domains that the hub sends readers of large files to."""
TIMEOUT_S: Final = 10
MAX_BYTES: Final = MIB
MAX_REDIRECTS: Final = 5
FIRST_BYTES: Final = 128 * KIB
"""Asked for at once: most headers are shorter, and a second request costs more than the rest."""
CHUNK_BYTES: Final = 64 * KIB
GATED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
FOUND: Final = frozenset({HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT})
_RANGE: Final = re.compile("bytes 0-[0-9]{1,18}/([0-9]{1,18})")


def config_from_hub(
    model_id: str, revision: str | None, *, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return the config.json of a model that the catalogue lacks; None for one that it has.

    ``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` opens gated models.

    Raises:
        Failure: the hub does not answer, or has no such file for this user.
    """
    try:
        built_in_model(model_id)
    except UnknownModelError:
        with _files(model_id, revision, environment) as files:
            return files.config()
    except CatalogError:
        return None  # known, and refused: the plan says why
    return None


def checkpoint_from_hub(
    model_id: str, revision: str | None, *, environment: Mapping[str, str] = os.environ
) -> Checkpoint:
    """Return the tensors of a model's safetensors files, of which only the headers are fetched.

    Raises:
        Failure: the hub does not answer, or has no such files for this user, or damaged ones.
    """
    with (
        _files(model_id, revision, environment) as files,
        failing(CheckpointError, where=f"--hub: {model_id}: "),
    ):
        return read_checkpoint(files)


@contextmanager
def _files(
    model_id: str, revision: str | None, environment: Mapping[str, str]
) -> "Iterator[HubFiles]":
    import requests  # noqa: PLC0415  (a plan needs no network)

    with requests.Session() as session:
        yield HubFiles(
            session=session,
            hub=environment.get("HF_ENDPOINT", PUBLIC_HUB).rstrip("/"),
            token=environment.get("HF_TOKEN"),
            model_id=model_id,
            revision=quote(revision or "main", safe=""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFiles:
    """The files of one model on a hub, at one revision."""

    session: "Session"
    hub: str
    token: str | None
    model_id: str
    revision: str

    def names(self) -> Iterable[str]:
        address = f"{self.hub}/api/models/{self.model_id}/revision/{self.revision}"
        _, content = self.fetch(address, num_bytes=MAX_BYTES + 1)
        listed = json_object(content, file="the list of its files")
        return [str(each.get("rfilename")) for each in objects(listed, "siblings")]

    def whole(self, name: str, *, max_bytes: int) -> bytes | None:
        answer, content = self.fetch(
            self.address_of(name), num_bytes=max_bytes + 1, also=HTTPStatus.NOT_FOUND
        )
        return None if answer.status_code == HTTPStatus.NOT_FOUND else content

    def config(self) -> str:
        _, content = self.fetch(self.address_of("config.json"), num_bytes=MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise Failure(f"--hub: config.json of {self.model_id} exceeds {MAX_CONFIG_BYTES} bytes")
        with failing(ModelConfigError, where=f"--hub: {self.model_id}: "):
            return with_second_file(content.decode(errors="replace"), self.text)

    def text(self, name: str) -> str | None:
        content = self.whole(name, max_bytes=MAX_CONFIG_BYTES)
        return None if content is None else content.decode(errors="replace")

    def beginning(self, name: str, *, num_bytes: int) -> Beginning:
        wanted_bytes = max(num_bytes, FIRST_BYTES)
        answer, content = self.fetch(self.address_of(name), num_bytes=wanted_bytes, is_part=True)
        return content, self._file_bytes(answer, name)

    def address_of(self, name: str) -> str:
        return f"{self.hub}/{self.model_id}/resolve/{self.revision}/{quote(name)}"

    def fetch(
        self, address: str, *, num_bytes: int, is_part: bool = False, also: int = HTTPStatus.OK
    ) -> "tuple[Response, bytes]":
        """Return the answer of an address, and its content, up to so many bytes.

        ``is_part``: ask the hub for no more than that. ``also``: a further status that is fine.

        Raises:
            Failure: the hub does not answer, or with another status.
        """
        import requests  # noqa: PLC0415  (a plan needs no network)

        ranges = {"Range": f"bytes=0-{num_bytes - 1}"} if is_part else {}
        try:
            with self._open(address, ranges) as answer:
                status = answer.status_code
                if status not in FOUND and status != also:
                    hint = "; a gated model needs HF_TOKEN" if status in GATED else ""
                    raise Failure(f"--hub: {self.hub} answered {status} for {self.model_id}{hint}")
                return answer, _up_to(answer, num_bytes)
        except (requests.RequestException, ValueError) as error:  # a broken Location is one
            raise Failure(f"--hub: {self.hub} cannot be reached: {type(error).__name__}") from error

    def _open(self, address: str, ranges: Mapping[str, str]) -> "Response":
        """Ask, and follow the hub to where it keeps its files, which must not see the token."""
        for _ in range(MAX_REDIRECTS):
            headers = {"Accept-Encoding": "identity", **ranges}
            if self.token and _origin(address) == _origin(self.hub):
                headers["Authorization"] = f"Bearer {self.token}"
            answer = self.session.get(
                address, headers=headers, timeout=TIMEOUT_S, stream=True, allow_redirects=False
            )
            if not answer.is_redirect:
                return answer
            answer.close()
            address = self._next(address, answer.headers["Location"])
        raise Failure(f"--hub: {self.hub} redirects more than {MAX_REDIRECTS} times")

    def _next(self, address: str, location: str) -> str:
        following = urljoin(address, location)
        if not may_lead_to(following, hub=self.hub):
            raise Failure(f"--hub: {self.hub} leads to {following[:200]}, which is not followed")
        return following

    def _file_bytes(self, answer: "Response", name: str) -> int | None:
        if answer.status_code == HTTPStatus.OK:
            length = answer.headers.get("Content-Length", "")
            return int(length) if re.fullmatch("[0-9]{1,18}", length) else None
        content_range = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if content_range is None:
            raise Failure(f"--hub: {self.hub} did not return the start of {name}")
        return int(content_range[1])


def may_lead_to(address: str, *, hub: str) -> bool:
    """Tell whether a redirect stays with the hub, or leads to where the public hub keeps files.

    >>> may_lead_to("https://cdn-lfs.hf.co/file", hub="https://huggingface.co")
    True
    >>> may_lead_to("https://nothf.co/file", hub="https://huggingface.co")
    False
    """
    if _origin(address) == _origin(hub):
        return True
    parts = urlsplit(address)
    host = parts.hostname or ""
    is_store = any(host == store or host.endswith(f".{store}") for store in STORES)
    return parts.scheme == "https" and is_store


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc


def _up_to(answer: "Response", num_bytes: int) -> bytes:
    content = bytearray()
    for chunk in answer.iter_content(CHUNK_BYTES):
        content += chunk
        if len(content) >= num_bytes:
            break
    return bytes(content[:num_bytes])
