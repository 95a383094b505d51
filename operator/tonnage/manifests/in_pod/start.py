"""Starts vLLM with the module of its queue, which it writes where PYTHONPATH leads.

Runs as ``python3 -I -c`` in the container, and becomes vLLM: its command follows the digest.
"""

import hashlib
import os
import sys
from pathlib import Path

digest, *command = sys.argv[1:]
module = os.environb.get(b"TONNAGE_QUEUE_MODULE", b"")
found = hashlib.sha256(module).hexdigest()
if found != digest:
    sys.exit(
        f"vLLM is not started: the variable TONNAGE_QUEUE_MODULE has SHA-256 {found}, and the "
        f"container's command names {digest}. Undo what was changed in the pod template."
    )
folder = Path(os.environ["PYTHONPATH"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "tonnage_queue.py").write_bytes(module)
os.execvp(command[0], command)  # noqa: S606 - no shell reads them
