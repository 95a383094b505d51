"""The API key: asked for under ``/v1`` and nowhere else, so probes and scrapes need none."""

import secrets
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

VARIABLE: Final = "VLLM_API_KEY"
GUARDED: Final = "/v1"


def authentication(api_key: str) -> Middleware:
    """Return a middleware that asks for this key as a bearer token.

    Sources:
        [vllm-source] entrypoints/openai/server_utils.py AuthenticationMiddleware.
    """

    @web.middleware
    async def ask(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_open = request.method == "OPTIONS" or not request.path.startswith(GUARDED)
        if is_open or _is_brought(request.headers.get("Authorization", ""), api_key):
            return await handler(request)
        return web.json_response({"error": "Unauthorized"}, status=401)

    return ask


def _is_brought(header: str, api_key: str) -> bool:
    scheme, _, token = header.partition(" ")
    is_same = secrets.compare_digest(token.encode(), api_key.encode())
    return scheme.lower() == "bearer" and is_same
