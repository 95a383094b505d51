"""The operator's log: one line for each event, as key=value or as JSON."""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

LogFormat = Literal["text", "json"]
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:@%")


class Line:
    """What is logged: an event, and what is to be known of it by name.

    >>> str(Line("decision", object="serving/llama", wanted=4, message="4 are needed"))
    'event=decision object=serving/llama wanted=4 message="4 are needed"'
    """

    __slots__ = ("event", "fields")

    def __init__(self, event: str, **fields: str | float | bool | Mapping[str, object]) -> None:
        self.event, self.fields = event, fields

    def __str__(self) -> str:
        pairs = {"event": self.event, **self.fields}.items()
        return " ".join(f"{name}={_format_value(value)}" for name, value in pairs)


def _format_value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if text and set(text) <= _PLAIN else json.dumps(text, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level and logger, then the message; always one line, a traceback apart."""

    def __init__(self) -> None:
        super().__init__("time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802  (of the base class)
        return _time(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (of the base class)
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class JsonFormatter(logging.Formatter):
    """One JSON object in each line; what was logged by name stays so."""

    def format(self, record: logging.LogRecord) -> str:
        line = record.msg if isinstance(record.msg, Line) else Line(record.getMessage())
        found = line.fields | {"time": _time(record), "level": record.levelname}
        found |= {"logger": record.name, "event": line.event}
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def log_as(form: LogFormat) -> None:
    formatter = JsonFormatter() if form == "json" else TextFormatter()
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
