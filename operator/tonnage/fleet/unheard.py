"""The listener that a part has until it is given one."""


def unheard(*_: object) -> None:
    """Do nothing: nobody listens."""
