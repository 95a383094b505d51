"""What the servers of releases do with the queue's module: ``python tests/proof/proof_server.py``.

Read from their sources: how ``--middleware`` becomes part of the server, which routes take a
priority in their body, whether a header may say it, who of two waiting requests goes first, and
which streams begin with the engine's first output.
``servers.json`` has each answer with the releases that give it, and a default test holds the module
against them.
"""

import argparse
import ast
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from proof_sources import releases, unpacked

from tonnage_lab.assets import cache_folder

SERVERS: Final = Path(__file__).parent / "servers.json"
OLDEST: Final = (0, 12)
"""That takes the module."""
HEADER: Final = "X-Vllm-Priority"
STREAMS: Final = (
    "chat_completion_stream_generator",
    "chat_completion_stream_generator_raw",
    "completion_stream_generator",
)
"""What writes the streams of ``/v1/chat/completions`` and ``/v1/completions``; in 0.33 the first
passes the second on."""
POOLING: Final = "pooling"
"""Folder of routes that write no text: a server of a model that writes has none of them."""


def read_server(folder: Path) -> dict[str, list[str]]:
    """Return what a release's sources say: texts, by what they answer."""
    trees = dict(_trees(folder / "vllm" / "entrypoints"))
    classes = {
        node.name: node
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    loops = [
        ast.unparse(node)
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and ast.unparse(node.iter) == "args.middleware"
    ]
    [request] = [
        node
        for node in ast.walk(ast.parse((folder / "vllm/v1/request.py").read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "__lt__"
    ]
    routes = [
        path
        for file, tree in trees.items()
        if POOLING not in file.parts
        for path, handler in _routes(tree)
        if any(_has_priority(name, classes) for name in _names(handler))
    ]
    streams = sorted(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef)
        and node.name in STREAMS
        and _begins_with_an_output(node)
    )
    header = [HEADER] if any(HEADER in ast.unparse(tree) for tree in trees.values()) else []
    return {
        "how --middleware is read": loops,
        "who goes first": ["\n".join(ast.unparse(each) for each in request.body[1:])],
        "header of a priority": header,
        "streams that begin with an output": streams,
        "priority in the body": sorted(routes),
    }


def _begins_with_an_output(stream: ast.AsyncFunctionDef) -> bool:
    """Tell whether nothing is sent before the loop over outputs but an error that ends it all."""
    first = min(node.lineno for node in ast.walk(stream) if isinstance(node, ast.AsyncFor))
    ends = [
        node
        for node in ast.walk(stream)
        for body in (getattr(node, "body", []), getattr(node, "orelse", []))
        if isinstance(body, list) and body and isinstance(body[-1], ast.Return)
        for node in body
    ]
    of_errors = {id(each) for end in ends for each in ast.walk(end)}
    return not any(
        isinstance(node, ast.Yield) and node.lineno < first and id(node) not in of_errors
        for node in ast.walk(stream)
    )


def _trees(folder: Path) -> Iterator[tuple[Path, ast.Module]]:
    for file in sorted(folder.rglob("*.py")):
        yield file.relative_to(folder), ast.parse(file.read_text())


def _routes(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the path of each POST, and the function behind it."""
    for node in ast.walk(tree):
        for each in getattr(node, "decorator_list", ()):
            match each:
                case ast.Call(func=ast.Attribute(attr="post"), args=[ast.Constant(value=path), *_]):
                    yield str(path), node


def _names(handler: ast.AST) -> set[str]:
    """Return the names of requests that a function takes, or makes of a body."""
    found = (node.id for node in ast.walk(handler) if isinstance(node, ast.Name))
    return {each for each in found if each.endswith("Request")}


def _has_priority(name: str, classes: Mapping[str, ast.ClassDef]) -> bool:
    """Tell whether a class, or one that it is made from, has the field."""
    found = classes.get(name)
    return found is not None and any(
        isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == "priority"
        for each in found.body
    ) | any(isinstance(e, ast.Name) and _has_priority(e.id, classes) for e in found.bases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=cache_folder() / "proof")
    options = parser.parse_args()
    found = defaultdict[str, dict[str, str]](dict)
    for release in releases(OLDEST):
        for question, answers in read_server(unpacked(release, options.cache)).items():
            for each in answers:
                found[question][each] = f"{found[question].get(each, '')} {release}".strip()
    SERVERS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
