"""Calls of tools that are posted to a server of 2026-07-28 without the SDK in between.

The SDK makes several tasks, streams and models of each request, and its HTTP library costs four times what aiohttp
does. It still owns the connection: it negotiates, lists and listens. A server of this revision has no sessions, so each
POST stands for itself, and closing its connection cancels it. The usual answer, a short JSON body, is read here. Any
other body is read by the means that the SDK's answers are read with (`BoundedBody`).

A request that was redirected or refused before it was carried out is sent again by the SDK, which knows what to do:
follow within the origin, sign in, or say why not. A proxy is also left to the SDK's library.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.request import getproxies

import aiohttp
import httpx2
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, PROTOCOL_VERSION_META_KEY

from a2c_smcp.errors import kind_of
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_host.failures import ServerFailure, ServerGone
from a2c_smcp.mcp_host.sign_in.account import Account
from a2c_smcp.mcp_host.sign_in.addresses import certificates
from a2c_smcp.mcp_host.transports.direct_requests import (
    DirectSender,
    MCPRequest,
    Otherwise,
    PendingRequest,
    settle,
    written,
)
from a2c_smcp.mcp_host.transports.messages import read_line

logger = logging.getLogger(__name__)

_SHORT = 256 * 1024
"""Bytes of a body that is read at once. It has fewer values than any limit allows."""
_KEPT_ALIVE = 4.0  # seconds: many servers close a connection after 5 s, perhaps while a request is on its way
_MOST_CONNECTIONS = 100
_NOT_CARRIED_OUT = frozenset({401, 403, 404})
_POSTED = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def can_post_to(url: str) -> bool:
    """True if only the URL itself says how it is reached: no proxy, no user name."""
    return getproxies().keys() <= {"no"} and not httpx2.URL(url).userinfo


class DirectPosts(DirectSender):
    """Posts for one connection, an async context manager.

    `read` bounds the body of a response, `on_heard` is called when bytes come, and `on_lost` when the server cannot be
    reached.
    """

    is_traceable = False

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        timeout: float,
        account: Account | None,
        *,
        read: Callable[[httpx2.Response], Awaitable[None]],
        on_heard: Callable[[], None],
        on_lost: Callable[[ServerFailure], None],
    ) -> None:
        super().__init__()
        self._url, self._account = url, account
        self._headers = {**headers, **_POSTED}
        self._read, self._on_heard, self._on_lost = read, on_heard, on_lost
        self._tasks = OwnedTasks()
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=certificates(), limit=_MOST_CONNECTIONS, keepalive_timeout=_KEPT_ALIVE, ttl_dns_cache=None
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout),
            auto_decompress=False,
        )

    async def __aenter__(self) -> DirectPosts:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        await self._http.close()

    def send(self, request: MCPRequest, pending: PendingRequest, otherwise: Otherwise) -> int | None:
        """Post a call of a tool; the answer becomes the outcome of `pending`. Closing `pending` cancels it.

        `otherwise` sends it in another way, if the server has not carried it out. Return its id; `None` for another
        request, which is not sent. Raises `BadRequest` for values that are not JSON.
        """
        revision = self.common_meta.get(PROTOCOL_VERSION_META_KEY)
        if request.method != "tools/call" or revision is None:
            return None
        params, number = request.params, next(self.ids)
        params = params | {"_meta": {**self.common_meta, **params.get("_meta", {})}}
        body = written({"jsonrpc": "2.0", "id": number, "method": request.method, "params": params})
        headers = self._headers | {"Mcp-Protocol-Version": revision, "Mcp-Method": request.method}
        headers |= self.headers_of_call(params["name"], params["arguments"])
        task = self._tasks.spawn(self._posted(body, headers, pending, otherwise))
        pending.on_close(task.cancel)
        return number

    async def _posted(
        self, body: bytes, headers: dict[str, str], pending: PendingRequest, otherwise: Otherwise
    ) -> None:
        try:
            answer = await self._answer(body, headers)
        except (aiohttp.ClientError, httpx2.HTTPError, OSError) as error:
            self._on_lost(ServerGone(f"{kind_of(type(error))} {error}".strip()))
            return
        except ServerFailure as failure:
            pending.fail(failure)
            return
        except Exception:
            logger.exception("a request failed")
            pending.fail(ServerFailure())
            return
        pending.on_close(None)
        if answer is None:
            otherwise()
        else:
            settle(pending, answer)

    async def _answer(self, body: bytes, headers: dict[str, str]) -> Any:
        """Return the server's answer as a JSON-RPC message; `None` if the request has to be sent in another way."""
        token = await self._account.token() if self._account else None
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with self._http.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
            self._on_heard()
            if 300 <= response.status < 400:
                return None
            kind, length = response.headers.get("Content-Type", "").lower(), response.content_length
            if response.status >= 400:
                return await self._refusal(response, body, kind)
            if self._account:
                self._account.accepted(token)
            is_short = length is not None and length <= _SHORT and "Content-Encoding" not in response.headers
            if kind.startswith("application/json") and is_short:
                return _message(await response.read())
            return await self._long_answer(response, body)

    async def _refusal(self, response: aiohttp.ClientResponse, body: bytes, kind: str) -> Any:
        """Return the error in the body, or one for the status."""
        if response.status not in (401, 403) and kind.startswith("application/json"):
            answer = await self._long_answer(response, body)
            if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
                return answer
        if response.status in _NOT_CARRIED_OUT:
            return None
        return _error(INTERNAL_ERROR, f"Server returned an error response: HTTP {response.status}")

    async def _long_answer(self, response: aiohttp.ClientResponse, body: bytes) -> Any:
        """Return the answer in a body of any length and form, after the notifications before it."""
        bounded = httpx2.Response(
            response.status,
            headers=[*response.headers.items()],
            stream=_StreamedBody(response),
            request=httpx2.Request("POST", self._url, content=body),
        )
        await self._read(bounded)
        kind = bounded.headers.get("content-type", "").lower()
        if kind.startswith("application/json"):
            return _message(await bounded.aread())
        if not kind.startswith("text/event-stream"):
            return _error(INVALID_REQUEST, f"Unexpected content type: {kind}")
        return await self._streamed_answer(httpx2.EventSource(bounded, max_event_size=None))

    async def _streamed_answer(self, events: httpx2.EventSource) -> Any:
        """Return the answer in a stream. A stream that breaks ends its request, and nothing else."""
        try:
            async for event in events:
                message = _message(event.data.encode(errors="surrogatepass"))
                if "method" not in message and "id" in message:
                    return message
                method, params = message.get("method"), message.get("params") or {}
                if (
                    self.on_notification
                    and isinstance(method, str)
                    and isinstance(params, dict)
                    and "id" not in message
                ):
                    self.on_notification(method, params)
        except (httpx2.HTTPError, httpx2.SSEError) as error:
            raise ServerGone(f"{kind_of(type(error))} {error}".strip()) from None
        raise ServerGone("the stream ended without a response")


class _StreamedBody(httpx2.AsyncByteStream):
    """A body that aiohttp reads, for the readers of httpx2."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._response.content.iter_any():
                yield part
        except aiohttp.ClientError as error:
            raise httpx2.ReadError(str(error)) from error

    async def aclose(self) -> None:
        """The context manager of the response closes it."""


def _message(text: bytes) -> dict[str, Any]:
    """Return the message in a body. A body that is not one message becomes `{}`, which fails the request."""
    try:
        messages = read_line(text)
    except ValueError:
        return {}
    return messages[0] if len(messages) == 1 and isinstance(messages[0], dict) else {}


def _error(code: int, text: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": text}}
