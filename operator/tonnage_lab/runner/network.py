"""Network namespaces of pods: each has a link to this machine and an address of its own.

A runner owns one of 64 blocks of addresses for as long as it lives; the kernel gives the block
back whichever way it dies. What a dead owner left in a block is removed by the next one.
"""

import ipaddress
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

logger = logging.getLogger(__name__)

POD_NETWORK: Final = ipaddress.IPv4Network("10.244.0.0/16")
_BLOCK_PREFIX: Final = 22
_LINK_PREFIX: Final = 30
NAMESPACE_FOLDER: Final = Path("/run/netns")


class NetworkError(Exception):
    """A network namespace or address cannot be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNetwork:
    """The namespace of one pod."""

    namespace: str
    link: str
    gateway_ip: str
    pod_ip: str

    @property
    def path(self) -> Path:
        return NAMESPACE_FOLDER / self.namespace


def _ip(*arguments: str, script: str | None = None, check: bool = True) -> str:
    """Run iproute2's ``ip`` and return what it printed.

    Raises:
        NetworkError: it failed, and that matters.
    """
    program = shutil.which("ip") or "ip"
    done = subprocess.run(
        [program, *arguments], input=script, capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        said = done.stderr.strip() or f"ended with {done.returncode}"
        raise NetworkError(f"ip {' '.join(arguments)}: {said}")
    return done.stdout


@dataclass(slots=True, kw_only=True)
class AddressBlock:
    """Addresses for the pods of one runner: ``claim`` one, then ``add`` and ``remove``."""

    index: int
    lock: socket.socket
    _next: int = 0
    _used: set[int] = field(default_factory=set)

    @property
    def network(self) -> ipaddress.IPv4Network:
        return list(POD_NETWORK.subnets(new_prefix=_BLOCK_PREFIX))[self.index]

    @property
    def num_links(self) -> int:
        """Links that fit; the last one's place is this machine's own address."""
        return (self.network.num_addresses >> (32 - _LINK_PREFIX)) - 1

    @property
    def host_ip(self) -> str:
        """Return the address by which this machine is known to be the pods' node."""
        return str(self.network[-3])

    def pod_network(self, number: int) -> PodNetwork:
        """Return the names and addresses of the pod with this number in the block."""
        first = number << (32 - _LINK_PREFIX)
        return PodNetwork(
            namespace=f"tonnage-{self.index}-{number}",
            link=f"tonnage{self.index}-{number}",
            gateway_ip=str(self.network[first + 1]),
            pod_ip=str(self.network[first + 2]),
        )

    def reserve(self) -> int:
        """Return the number of a link to make; they go round, so that addresses rest after use.

        Raises:
            NetworkError: the block is full.
        """
        for step in range(self.num_links):
            number = (self._next + step) % self.num_links
            if number not in self._used:
                self._next = number + 1
                self._used.add(number)
                return number
        raise NetworkError(f"all {self.num_links} pod addresses of {self.network} are in use")

    def make(self, number: int) -> PodNetwork:
        """Make the namespace and link of a reserved number.

        Raises:
            NetworkError: the kernel refuses; nothing is left then.
        """
        network = self.pod_network(number)
        try:
            _make(network)
        except NetworkError:
            self.remove(number)
            raise
        return network

    def remove(self, number: int) -> None:
        """Remove a namespace; its link goes with it."""
        _remove(self.pod_network(number))
        self._used.discard(number)

    def open(self) -> None:
        """Remove what a dead owner left, and take this machine's own address."""
        self.sweep()
        _ip("address", "replace", f"{self.host_ip}/32", "dev", "lo")

    def close(self) -> None:
        """Remove everything and give the block back."""
        self.sweep()
        self.lock.close()

    def sweep(self) -> None:
        """Remove every namespace and link of this block, and the processes in them."""
        prefix = f"tonnage-{self.index}-"
        for path in NAMESPACE_FOLDER.glob(f"{prefix}*"):
            _kill_processes_in(path.name)
            _remove(self.pod_network(int(path.name.removeprefix(prefix))))
        for link in _links():
            if link.startswith(f"tonnage{self.index}-"):
                _ip("link", "delete", link, check=False)
        _ip("address", "delete", f"{self.host_ip}/32", "dev", "lo", check=False)


def claim() -> AddressBlock:
    """Claim the first block that no other runner has and no other network overlaps.

    Raises:
        NetworkError: there is none.
    """
    foreign = _foreign_networks()
    for index in range(1 << (_BLOCK_PREFIX - POD_NETWORK.prefixlen)):
        lock = socket.socket(socket.AF_UNIX)
        block = AddressBlock(index=index, lock=lock)
        if any(block.network.overlaps(each) for each in foreign):
            lock.close()
            continue
        try:
            lock.bind(f"\0tonnage-pod-network-{index}")
        except OSError:
            lock.close()
            continue
        return block
    raise NetworkError(f"no free block of addresses in {POD_NETWORK}")


def _foreign_networks() -> list[ipaddress.IPv4Network]:
    """Return the networks of this machine that are not a runner's."""
    found = []
    for link in _addresses():
        if link["ifname"].startswith("tonnage") or link["ifname"] == "lo":
            continue
        for each in link.get("addr_info", []):
            address = ipaddress.IPv4Interface(f"{each['local']}/{each['prefixlen']}")
            found.append(address.network)
    return found


def _addresses() -> list[dict[str, Any]]:
    return json.loads(_ip("-json", "-4", "address", "show") or "[]")  # type: ignore[no-any-return]


def _links() -> list[str]:
    return [link["ifname"] for link in json.loads(_ip("-json", "link", "show") or "[]")]


def _make(network: PodNetwork) -> None:
    _ip("netns", "add", network.namespace)
    inside = f"{network.link}p"
    link, gateway = network.link, network.gateway_ip
    _ip(
        "-batch", "-",
        script=f"link add {link} type veth peer name {inside} netns {network.namespace}\n"
        f"address add {gateway}/{_LINK_PREFIX} dev {link}\n"
        f"link set {link} up\n",
    )  # fmt: skip
    try:
        Path(f"/proc/sys/net/ipv4/conf/{link}/forwarding").write_text("1")
    except OSError as error:  # read-only in some containers
        logger.warning("the pod at %s reaches no other pod: %s", network.pod_ip, error)
    _ip(
        "-n", network.namespace, "-batch", "-",
        script="link set lo up\n"
        f"address add {network.pod_ip}/{_LINK_PREFIX} dev {inside}\n"
        f"link set {inside} up\n"
        f"route add default via {gateway}\n",
    )  # fmt: skip


def _remove(network: PodNetwork) -> None:
    """Remove a namespace; the kernel takes both ends of its link with it, in its own time."""
    _ip("netns", "delete", network.namespace, check=False)


def _kill_processes_in(namespace: str) -> None:
    for pid in _ip("netns", "pids", namespace, check=False).split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
