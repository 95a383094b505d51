"""The names of pods in headless Services, told as a cluster's DNS does: of these, and of no others.

The names are those of EndpointSlices, so a pod that is not Ready has one where its Service
publishes such. A resolver that asks for another is told at once that there is none.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tonnage_lab.runner.api import Api
from tonnage_lab.runner.watch import Watch, WatchHandlers

logger = logging.getLogger(__name__)

Json = Mapping[str, Any]

DOMAIN: Final = "svc.cluster.local"
PORT: Final = 53
TTL_S: Final = 1
"""How long an answer may be kept."""
_HEADER: Final = struct.Struct("!6H")
_TYPES: Final = struct.Struct("!2H")
_ANSWER: Final = struct.Struct("!3HIH")
_ADDRESS: Final = 1
"""Type A."""
_ANSWERED: Final = 0x8580
_NO_SUCH_NAME: Final = 0x8583
_NAME_OF_QUESTION: Final = 0xC00C


def resolver_configuration(namespace: str, server: str) -> str:
    """Return the ``/etc/resolv.conf`` of a pod."""
    domains = f"{namespace}.{DOMAIN} {DOMAIN} cluster.local"
    return f"nameserver {server}\nsearch {domains}\noptions ndots:5\n"


@dataclass(slots=True, kw_only=True)
class Names:
    """Addresses by name, as the EndpointSlices say."""

    _slices: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """By uid."""

    def follower(self) -> WatchHandlers:
        return WatchHandlers(on_list=self._on_list, on_event=self._on_event)

    def _on_list(self, found: list[dict[str, Any]]) -> None:
        self._slices = {each["metadata"]["uid"]: dict(_names_in(each)) for each in found}

    def _on_event(self, kind: str, found: Json) -> None:
        uid = found["metadata"]["uid"]
        if kind == "DELETED":
            self._slices.pop(uid, None)
        else:
            self._slices[uid] = dict(_names_in(found))

    def addresses(self, name: str) -> list[str]:
        """Return the addresses of a name; none where nobody has it."""
        return [told[name] for told in self._slices.values() if name in told]


def _names_in(found: Json) -> Iterator[tuple[str, str]]:
    metadata = found["metadata"]
    service = (metadata.get("labels") or {}).get("kubernetes.io/service-name")
    for endpoint in found.get("endpoints") or ():
        if host := endpoint.get("hostname"):
            name = f"{host}.{service}.{metadata['namespace']}.{DOMAIN}"
            yield name, endpoint["addresses"][0]


def answer(question: bytes, names: Names) -> bytes:
    """Return the answer to a question with one name."""
    number, *_ = _HEADER.unpack_from(question)
    labels, end = [], _HEADER.size
    while length := question[end]:
        labels.append(question[end + 1 : end + 1 + length].decode().lower())
        end += 1 + length
    kind, kind_of_net = _TYPES.unpack_from(question, end + 1)
    found = names.addresses(".".join(labels))
    told = found if kind == _ADDRESS else []
    flags = _ANSWERED if found else _NO_SUCH_NAME
    records = (
        _ANSWER.pack(_NAME_OF_QUESTION, kind, kind_of_net, TTL_S, 4) + socket.inet_aton(address)
        for address in told
    )
    asked = question[_HEADER.size : end + 1 + _TYPES.size]
    return _HEADER.pack(number, flags, 1, len(told), 0, 0) + asked + b"".join(records)


class _Server(asyncio.DatagramProtocol):
    def __init__(self, names: Names) -> None:
        self._names = names
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        if self._transport is not None:
            self._transport.sendto(answer(data, self._names), addr)


async def serve(api: Api, address: str) -> None:
    """Answer at an address for ever; where its port is taken pods have no names, and run."""
    names, transport = Names(), None
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Server(names), local_addr=(address, PORT)
        )
    except OSError as error:
        logger.warning("pods have no names: UDP port %d of %s: %s", PORT, address, error)
    try:
        slices = Watch(api=api, path="/apis/discovery.k8s.io/v1/endpointslices")
        await slices.follow(names.follower())
    finally:
        if transport is not None:
            transport.close()
