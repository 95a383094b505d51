"""The glossary as data."""

from tonnage.explain.glossary import GLOSSARY


def glossary() -> list[dict[str, str]]:
    """Return the terms in order; ``vllm`` only where the engine has a name for it."""
    return [
        {"term": name, "meaning": term.meaning, **({"vllm": term.vllm} if term.vllm else {})}
        for name, term in GLOSSARY.items()
    ]
