"""Docker, as the command line of this user reaches it."""

from pathlib import Path

from tonnage_lab.processes import LabError, run


def docker(*arguments: str | Path) -> str:
    """Return what docker prints.

    Raises:
        LabError: it failed, with its complaint.
    """
    return run(["docker", *arguments])


def answers() -> bool:
    try:
        docker("version", "--format", "{{.Server.Version}}")
    except LabError:
        return False
    return True
