"""Answers the requests by which agents read what MCP servers offer (WIRE §9, PROTOCOL-0.4 §2). All of it is masked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from a2c_smcp import mcp_events, published_events
from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.calls.live import LiveCalls, is_input_required
from a2c_smcp.computer.hosting import Hosting
from a2c_smcp.computer.questions.answering import Answering
from a2c_smcp.computer.reading.contents import ReadContents
from a2c_smcp.computer.reading.lists import ReadLists
from a2c_smcp.computer.reading.pages import PROMPTS, RESOURCES, TEMPLATES, TITLED_RESOURCES
from a2c_smcp.computer.reading.server_reads import ReadAsked, Result, ServerReads, masked_error, refused_read
from a2c_smcp.computer.reading.subscriptions import SubscribedResources
from a2c_smcp.computer.secrets import READ, Mask
from a2c_smcp.computer.sign_in.refusals import hint_for, refused_read_of
from a2c_smcp.computer.tells import Tells
from a2c_smcp.errors import (
    BadRequest,
    CapabilityNotSupported,
    PromptNotFound,
    ServerNotFound,
    ServerNotRegistered,
    SMCPError,
)
from a2c_smcp.mcp_host.failures import AuthRequired, RequestRefused, ServerNotReady
from a2c_smcp.mcp_host.sessions.server_info import AboutServer
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest
from a2c_smcp.protocol.codec import MAX_TIMEOUT

__all__ = ["ReadAnswers"]

ANSWER_LIMIT = 20.0
"""Seconds for a request that names no `timeout` (WIRE §5)."""
_REFS: Mapping[object, str] = {"ref/prompt": "name", "ref/resource": "uri"}


class ReadAnswers:
    """`events` are those that it answers. `host` is called for each request. Subscriptions have this `lifetime`."""

    def __init__(
        self,
        host: Callable[[], Hosting],
        live: LiveCalls,
        answering: Answering,
        contents: ReadContents,
        tells: Tells,
        mask: Mask,
        lifetime: float,
    ) -> None:
        self.subscriptions = SubscribedResources(host, tells, mask, lifetime)
        self._host = host
        self._reads = ServerReads(host, live, answering)
        self._lists = ReadLists(host, self._reads, mask)
        self._contents = contents
        self._mask = mask
        self._answers: dict[str, Callable[[ReadAsked], Awaitable[Result]]] = {
            mcp_events.GET_SERVERS_EVENT: self._get_servers,
            published_events.GET_RESOURCES_EVENT: self._get_resources,
            mcp_events.GET_RESOURCE_TEMPLATES_EVENT: lambda asked: self._lists.answer(TEMPLATES, asked),
            mcp_events.READ_RESOURCE_EVENT: self._read_resource,
            mcp_events.SUBSCRIBE_RESOURCE_EVENT: self._subscribe,
            mcp_events.UNSUBSCRIBE_RESOURCE_EVENT: self._unsubscribe,
            mcp_events.GET_PROMPTS_EVENT: self._get_prompts,
            mcp_events.GET_PROMPT_EVENT: self._get_prompt,
            mcp_events.COMPLETE_EVENT: self._complete,
        }
        self.events = frozenset(self._answers)

    async def answer(self, event: str, caller: Caller, data: Mapping[str, Any]) -> Result:
        """The answer to a decoded request, without its `req_id`. Raises `SMCPError`, without secrets."""
        called, server = data.get("mcp_server") or "", None
        try:
            server = self._host().known(called) if called else ""
            limit = data["timeout"] if _is_timeout(data.get("timeout")) else ANSWER_LIMIT
            deadline = asyncio.get_running_loop().time() + limit
            return await self._answers[event](ReadAsked(caller, data, server, called, deadline))
        except AuthRequired as failure:
            raise refused_read_of(failure, called) from None
        except CapabilityNotSupported as error:
            missing = f"{called!r} does not offer {error.details['capability']}"
            raise CapabilityNotSupported(missing, **{**error.details, "mcp_server": called}) from None
        except SMCPError as error:
            if event == published_events.GET_RESOURCES_EVENT and isinstance(error, ServerNotFound | ServerNotReady):
                raise ServerNotRegistered(repr(called), mcp_server=called) from None
            raise masked_error(error, self._mask, server) from None

    # Servers

    async def _get_servers(self, _: ReadAsked) -> Result:
        host = self._host()
        return {"servers": [self._server(host, name, status.state) for name, status in host.status().items()]}

    def _server(self, host: Hosting, name: str, state: str) -> Result:
        is_known = name in host.manager
        about = host.manager.about(name) if is_known else AboutServer()
        found: Result = {"name": name, "bundle_id": host.bundle_ids.of(name), "state": state}
        found["capabilities"] = about.capabilities
        said = {"title": about.title, "version": about.version, "instructions": about.instructions}
        found |= {field: value for field, value in said.items() if value}
        if about.icons:
            found["icons"] = about.icons
        if state == "auth_required" and is_known and (refusal := host.manager.refusal(name)):
            found["auth"] = {"error_code": refusal.result_code, **hint_for(refusal, name)}
        masked: list[Result] = self._mask.data({"servers": [found]}, READ, name)["servers"]
        return masked[0]

    # Lists and contents

    async def _get_resources(self, asked: ReadAsked) -> Result:
        return await self._lists.answer(TITLED_RESOURCES if asked.data.get("titles") is True else RESOURCES, asked)

    async def _get_prompts(self, asked: ReadAsked) -> Result:
        return await (self._lists.answer(PROMPTS, asked) if asked.server else self._lists.prompts_of_all(asked))

    async def _read_resource(self, asked: ReadAsked) -> Result:
        uri = self._lists.original(asked.server, asked.data["uri"])
        raw = await self._reads.ask(asked, "resources/read", {"uri": uri}, f"resource {asked.data['uri']}")
        if is_input_required(raw):
            return await self._mask.answer(raw, READ, asked.server)
        return await self._contents.resource(asked.caller, asked.server, raw, texts=asked.data.get("blobs") is True)

    async def _get_prompt(self, asked: ReadAsked) -> Result:
        name, arguments = asked.data["name"], asked.data.get("arguments")
        if any(not isinstance(value, str) for value in (arguments or {}).values()):
            raise BadRequest("arguments: must be strings", field="arguments")
        params = {"name": name, **({} if arguments is None else {"arguments": arguments})}
        try:
            raw = await self._reads.ask(asked, "prompts/get", params, f"prompt {name}")
        except (RequestRefused, BadRequest) as refusal:
            if "mcp_code" in refusal.details:
                raise await self._explained(asked, name, refusal) from None
            raise
        if is_input_required(raw):
            return await self._mask.answer(raw, READ, asked.server)
        return await self._contents.prompt(asked.caller, asked.server, raw, texts=asked.data.get("blobs") is True)

    async def _explained(self, asked: ReadAsked, name: str, refusal: SMCPError) -> SMCPError:
        """Why a prompt was refused. Many MCP servers only say that something is wrong."""
        prompt = await self._lists.prompt(asked, name)
        if prompt is None:
            return PromptNotFound(repr(name), **{**refusal.details, "mcp_server": asked.called})
        given = asked.data.get("arguments") or {}
        needed = [each["name"] for each in prompt.get("arguments") or () if each.get("required") is True]
        if missing := [each for each in needed if each not in given]:
            about = f"arguments: the prompt {name!r} needs {', '.join(missing)}"
            return BadRequest(about, **{**refusal.details, "field": "arguments"})
        return refusal

    async def _complete(self, asked: ReadAsked) -> Result:
        params: Result = {"ref": self._ref(asked), "argument": _argument(asked.data["argument"])}
        if (context := asked.data.get("context")) is not None:
            params["context"] = context
        raw = await self._reads.read(asked.server, ReadRequest("completion/complete", params, asked.left))
        return await self._contents.completion(asked.server, raw)

    def _ref(self, asked: ReadAsked) -> Result:
        ref: Result = asked.data["ref"]
        field = _REFS.get(ref.get("type"))
        if field is None or not isinstance(ref.get(field), str):
            shapes = '{"type": "ref/prompt", "name"} or {"type": "ref/resource", "uri"}'
            raise BadRequest(f"ref: must be {shapes}", field="ref")
        return {**ref, field: self._lists.original(asked.server, ref[field])} if field == "uri" else ref

    # Subscriptions

    async def _subscribe(self, asked: ReadAsked) -> Result:
        uri = asked.data["uri"]
        original = self._lists.original(asked.server, uri)
        try:
            await self.subscriptions.subscribe(asked.caller, asked.called, uri, original, asked.left)
        except RequestRefused as refusal:
            raise refused_read(refusal, "resources/subscribe", asked.called, uri) from None
        return {}

    async def _unsubscribe(self, asked: ReadAsked) -> Result:
        original = self._lists.original(asked.server, asked.data["uri"])
        self.subscriptions.unsubscribe(asked.caller, asked.called, original)
        return {}


def _argument(argument: Mapping[str, Any]) -> Result:
    if not all(isinstance(argument.get(field), str) for field in ("name", "value")):
        raise BadRequest('argument: must be {"name", "value"}, both strings', field="argument")
    return dict(argument)


def _is_timeout(timeout: object) -> bool:
    return type(timeout) is int and 1 <= timeout <= MAX_TIMEOUT
