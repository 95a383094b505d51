"""Answers of Prometheus that are below every limit of bytes, and much once they are objects."""

from itertools import count, islice

from tonnage.units import MIB

LARGE_BYTES = 31 * MIB
RUNNING = b'"__name__":"vllm:num_requests_running","namespace":"%s","pod":"%s"'
DONE = RUNNING.replace(b"vllm:num_requests_running", b"vllm:request_success_total")
HEAD = b'{"status":"success","data":{"resultType":"matrix","result":['
EMOJI = "\U0001f600".encode()


def filled(head, parts, tail, size):
    """Return head and tail with as many parts between them, with commas, as there is room for."""
    found, room = [], size - len(head) - len(tail)
    for part in parts:
        room -= len(part) + 1
        if room < 0:
            break
        found.append(part)
    return head + b",".join(found) + tail


def matrix(size, parts):
    return filled(HEAD, parts, b"]}}", size)


def one_series(size, labels, samples):
    head = HEAD + b'{"metric":{' + labels + b'},"values":['
    return filled(head, samples, b"]}]}}", size)


def repeated(part, size):
    return islice(iter(lambda: part, None), size // len(part))


def series(labels, number, num_samples, first=0):
    values = b",".join(b'[%d,"2"]' % (first + at) for at in range(num_samples))
    return b'{"metric":{%s,"x":"%d"},"values":[%s]}' % (labels, number, values)


def bodies(size, namespace="blue", pod="llama-0"):
    """Return by name what makes the body of about so many bytes."""
    own, done = (each % (namespace.encode(), pod.encode()) for each in (RUNNING, DONE))
    text = size - 1000
    return {
        "a million samples": lambda: one_series(size, own, (b'[%d,"2"]' % at for at in count())),
        "a sample again and again": lambda: one_series(size, own, repeated(b'[1,"2"]', size)),
        "samples of nobody": lambda: one_series(size, b"", repeated(b'[1,"2"]', size)),
        "samples that are no figures": lambda: one_series(size, own, repeated(b"[1,true]", size)),
        "series of nothing": lambda: matrix(size, repeated(b'{"metric":{},"values":[]}', size)),
        "copies at other times": lambda: matrix(
            size, (series(own, at, 60, 60 * at) for at in count())
        ),
        "engines": lambda: matrix(
            size, (series(own + b',"engine":"%d"' % at, 0, 1) for at in count())
        ),
        "engines of an hour": lambda: matrix(
            size, (series(own + b',"engine":"%d"' % at, 0, 60) for at in count())
        ),
        "reasons": lambda: matrix(
            size, (series(done + b',"finished_reason":"%d"' % at, 0, 1) for at in count())
        ),
        "labels": lambda: filled(
            HEAD + b'{"metric":{', (b'"%x":""' % at for at in count()), b'},"values":[]}]}}', size
        ),
        "a long label": lambda: one_series(size, b'"a":"' + b"a" * text + EMOJI + b'"', []),
        "a long figure": lambda: one_series(size, own, [b'[1,"' + b"a" * text + EMOJI + b'"]']),
        "a number": lambda: one_series(size, own, [b"[1," + b"9" * text + b"]"]),
        "a long word": lambda: HEAD.replace(b"matrix", b"a" * text + EMOJI) + b"]}}",
        "fields": lambda: filled(b"{", (b'"%x":1' % at for at in count()), b"}", size),
        "depth": lambda: b'{"status":"success","x":' + b"[" * text,
        "warnings": lambda: filled(HEAD + b']},"warnings":[', repeated(b'""', size), b"]}", size),
    }
