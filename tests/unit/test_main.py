"""The operator's process, as it starts in its own image."""

import os
import subprocess
import sys

import pytest

from http_double import a_kubeconfig, json_reply, serving
from tonnage.lab.processes import free_ports

AS_NOBODY_KNOWN = ("unshare", "--user", "--map-user=65532")
"""The user of the chart and the image, whom no passwd file knows, with our rights to files."""
NAMES_OF_A_USER = {"HOME", "USER", "LOGNAME", "LNAME", "USERNAME"}


def can_map_users():
    command = [*AS_NOBODY_KNOWN, "true"]
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_map_users(), reason="no unshare, or no right to map a user's number")
def test_the_operator_starts_as_a_user_without_a_name(tmp_path):
    (probe_port,) = free_ports(1)
    settings, kubeconfig = tmp_path / "settings.yaml", tmp_path / "kubeconfig"
    settings.write_text(f"prometheusUrl: http://127.0.0.1:1\nprobePort: {probe_port}\n")
    command = [*AS_NOBODY_KNOWN, sys.executable, "-m", "tonnage", "run", "--config", str(settings)]
    nameless = {name: text for name, text in os.environ.items() if name not in NAMES_OF_A_USER}
    agents = set()

    def answer(asked):
        """Serve nothing, and end the operator as soon as Kopf asks for something."""
        agents.add(agent := asked.headers["User-Agent"].partition("/")[0])
        if agent == "kopf":
            operator.kill()
        return json_reply({"kind": "Status", "message": "not found"}, status=404)

    with serving(answer) as server:
        kubeconfig.write_text(a_kubeconfig(server.url))
        operator = subprocess.Popen(  # noqa: S603
            command, env=nameless | {"KUBECONFIG": str(kubeconfig)}, stderr=subprocess.PIPE
        )
        with operator:
            try:
                _, said = operator.communicate(timeout=60)
            finally:
                operator.kill()

    assert "kopf" in agents, said.decode()
