"""A server on loopback that gives the answers that an API server gives, and a kubeconfig for it."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml


@contextmanager
def serving(folder, patches=None):
    """Give a function that serves {path: (status, body)} and returns a kubeconfig.

    ``patches``: takes (path, body) of each patch that is asked for.
    """
    servers = []

    def serve(answers):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(answers, patches))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return a_kubeconfig(folder, f"http://127.0.0.1:{server.server_port}")

    yield serve
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def handler(answers, patches):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer()

        def do_PATCH(self):
            length = int(self.headers["Content-Length"])
            patches.append((self.path.partition("?")[0], json.loads(self.rfile.read(length))))
            self.answer()

        def answer(self):
            status, body = answers.get(self.path.partition("?")[0], (404, {"message": ""}))
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    return Handler


def a_kubeconfig(folder, address):
    path = folder / "kubeconfig"
    named = {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "serving"}}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [named],
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path
