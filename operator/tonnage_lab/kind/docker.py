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
    return _succeeds("version", "--format", "{{.Server.Version}}")


def has(image: str) -> bool:
    return _succeeds("image", "inspect", "--format", "{{.Id}}", image)


def _succeeds(*arguments: str) -> bool:
    try:
        docker(*arguments)
    except LabError:
        return False
    return True
