"""Programs from Debian's packages, unpacked into a folder and never installed.

The suite is named, whatever this machine runs: suites differ in more than age (bookworm's
Prometheus, for one, was built without Kubernetes service discovery). apt gets lists and
cache of its own for that, and the machine's stay as they are; only the address of the
mirror, and with it the trust in its signatures, comes from the machine.
"""

import shutil
from pathlib import Path
from typing import Final

from tonnage_lab.processes import LabError, run

SUITE: Final = "trixie"
_FORMAT: Final = "$(ORIGIN)|$(LABEL)|$(SITE)"


def unpack(package: str, folder: Path) -> None:
    """Unpack a package of the suite into a folder, which is emptied first.

    Raises:
        LabError: there is no apt, no Debian mirror, or no such package for this machine.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("apt/lists/partial", "apt/cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    sources = folder / "apt" / "sources.list"
    sources.write_text(f"deb {mirror()} {SUITE} main\n")
    options = _options(folder / "apt", sources)
    run(["apt-get", *options, "update"])
    run(["apt-get", *options, "download", package], folder=folder)
    run(["dpkg", "-x", *folder.glob("*.deb"), folder])


def mirror() -> str:
    """Return the address of the mirror that apt of this machine uses.

    Raises:
        LabError: there is no apt, or it knows none.
    """
    if shutil.which("apt-get") is None:
        raise LabError("no apt-get on the PATH")
    for line in run(["apt-get", "indextargets", "--format", _FORMAT]).splitlines():
        origin, label, site = line.split("|", 2)
        if (origin, label) == ("Debian", "Debian"):
            return site
    raise LabError("apt knows no mirror of Debian")


def _options(apt: Path, sources: Path) -> list[str]:
    settings = {
        "Dir::Etc::sourcelist": str(sources),
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": str(apt / "lists"),
        "Dir::Cache": str(apt / "cache"),
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "APT::Sandbox::User": "",  # the folder is this user's, not that of apt's own account
        "Debug::NoLocking": "true",
    }
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
