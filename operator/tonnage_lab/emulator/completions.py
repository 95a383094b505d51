"""``/v1/completions``: what is asked, what is refused, and the bytes that go back."""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

DEFAULT_MAX_TOKENS: Final = 16
"""Of the completions endpoint, when the request does not say."""
EACH_TEXT: Final = " token"


class ReplyError(Exception):
    """An answer that is an error, in the form that vLLM gives it."""

    def __init__(
        self, *, status: int, kind: str, message: str, parameter: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.parameter = parameter

    def body(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.parameter,
                "code": self.status,
            }
        }


def bad_request(message: str, parameter: str | None = None) -> ReplyError:
    """Return the error for a request that is wrong in itself."""
    return ReplyError(status=400, kind="BadRequestError", message=message, parameter=parameter)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A request that can be served."""

    id: str
    model: str
    prompt_tokens: int
    max_tokens: int
    stream: bool
    include_usage: bool
    transfer: Mapping[str, Any] = field(default_factory=dict)
    """``kv_transfer_params``: empty where nothing is handed over."""


def parse(body: object, *, models: tuple[str, ...], max_model_len: int) -> CompletionRequest:
    """Read a request's JSON.

    Raises:
        ApiError: the model is not served (404), or the request cannot be (400).
    """
    if not isinstance(body, Mapping):
        raise bad_request("the body must be a JSON object")
    model = body.get("model", models[0])
    if model not in models:
        raise ReplyError(
            status=404,
            kind="NotFoundError",
            message=f"The model `{model}` does not exist.",
            parameter="model",
        )
    if body.get("n", 1) != 1:
        raise bad_request(f"only n = 1 is served here, not {body['n']}", "n")
    prompt_tokens = num_prompt_tokens(body.get("prompt"))
    max_tokens = _max_tokens(body.get("max_tokens"))
    if prompt_tokens + max_tokens > max_model_len:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens, but "
            f"{prompt_tokens} prompt and {max_tokens} output tokens were requested.",
            "input_tokens" if prompt_tokens >= max_model_len else "max_tokens",
        )
    return CompletionRequest(
        id=f"cmpl-{uuid.uuid4().hex}",
        model=model,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        stream=bool(body.get("stream", False)),
        include_usage=bool((body.get("stream_options") or {}).get("include_usage", False)),
        transfer=body.get("kv_transfer_params") or {},
    )


def num_prompt_tokens(prompt: object) -> int:
    """Return the length of a prompt: of a list of token ids, or the words of a text.

    Raises:
        ApiError: it is neither, or empty.

    >>> num_prompt_tokens([1, 5, 6]), num_prompt_tokens("to be or")
    (3, 3)
    """
    if isinstance(prompt, str):
        length = len(prompt.split())
    elif isinstance(prompt, list) and all(isinstance(each, int) for each in prompt):
        length = len(prompt)
    else:
        raise bad_request("prompt must be one text or one list of token ids", "prompt")
    if not length:
        raise bad_request("the prompt is empty", "prompt")
    return length


def _max_tokens(value: object) -> int:
    if value is None:
        return DEFAULT_MAX_TOKENS
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise bad_request(f"max_tokens must be at least 1, not {value!r}", "max_tokens")
    return value


def usage(request: CompletionRequest, output_tokens: int) -> dict[str, int]:
    """Return the usage object."""
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + output_tokens,
        "completion_tokens": output_tokens,
    }


def answer(
    request: CompletionRequest, text: str, reason: str | None, *, created_s: int
) -> dict[str, Any]:
    """Return a whole answer, or one piece of a streamed one."""
    return {
        "id": request.id,
        "object": "text_completion",
        "created": created_s,
        "model": request.model,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}],
    }


class Frames:
    """The bytes of a streamed answer, made once per request: a token costs one write."""

    def __init__(self, request: CompletionRequest, *, chunked: bool) -> None:
        self._request = request
        self._chunked = chunked
        self._created_s = int(time.time())
        self.token = self._frame(self._answer(EACH_TEXT, None))

    def last(self, reason: str, output_tokens: int) -> bytes:
        """Return what ends the stream: the last token, the usage if asked for, and [DONE]."""
        frames = [self._frame(self._answer(EACH_TEXT, reason))]
        if self._request.include_usage:
            ending = self._answer("", None) | {
                "choices": [],
                "usage": usage(self._request, output_tokens),
            }
            frames.append(self._frame(ending))
        frames.append(self._encode(b"data: [DONE]\n\n"))
        return b"".join(frames)

    def _answer(self, text: str, reason: str | None) -> dict[str, Any]:
        return answer(self._request, text, reason, created_s=self._created_s)

    def _frame(self, content: Mapping[str, Any]) -> bytes:
        return self._encode(b"data: %s\n\n" % json.dumps(content, separators=(",", ":")).encode())

    def _encode(self, data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data
