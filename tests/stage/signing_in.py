"""People and clients that sign in at `server --mcp --sign-in`, without a browser."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp

from tests.peer import PATIENCE

CALLBACK = "http://127.0.0.1:33418/callback"


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP, as it came."""

    status: int
    headers: Mapping[str, str]
    text: str
    json: Any = None


async def send(method: str, url: str, **options: Any) -> Answer:
    timeout = aiohttp.ClientTimeout(PATIENCE)
    async with (
        aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as http,
        http.request(method, url, allow_redirects=False, **options) as response,
    ):
        text = await response.text()
        is_json = response.content_type == "application/json"
        return Answer(response.status, dict(response.headers), text, await response.json() if is_json else None)


class Person:
    """Somebody in front of a page: types a key or a link, and decides."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url = url
        self._headers = {"Origin": url, **headers}

    async def post(self, page: Answer, **fields: str) -> Answer:
        """Sends the form of a page, with these fields filled in."""
        found = re.search(r'name="shown" value="([^"]+)"', page.text)
        assert found, page.text
        form = {"shown": unescape(found[1]), **fields}
        return await send("POST", f"{self.url}/sign-in/authorize", data=form, headers=self._headers)

    async def sign_in(self, address: str, credential: str) -> Answer:
        """Opens the page for a request, proves who this is, and allows it. The answer leads to the client."""
        page = await send("GET", address)
        assert page.status == 200, page.text
        page = await self.post(page, credential=credential)
        return await self.post(page, decision="allow") if page.status == 200 else page


@dataclass
class RawClient:
    """A client by hand, which can be made to do everything wrong."""

    url: str
    office: str = "desk"
    redirect: str = CALLBACK
    id: str = ""
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(48))

    @property
    def challenge(self) -> str:
        return base64.urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")

    async def register(self, **metadata: Any) -> Answer:
        body = {"redirect_uris": [self.redirect], "client_name": "Raw", **metadata}
        answer = await send("POST", f"{self.url}/sign-in/register", json=body)
        self.id = answer.json.get("client_id", "")
        return answer

    def address(self, **changed: str | None) -> str:
        """The URL that opens the page. A field that is changed to `None` is left out."""
        fields = {
            "response_type": "code",
            "client_id": self.id,
            "redirect_uri": self.redirect,
            "code_challenge": self.challenge,
            "code_challenge_method": "S256",
            "resource": f"{self.url}/mcp/{self.office}",
            "state": "the state",
            **changed,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        return f"{self.url}/sign-in/authorize?{urlencode(known)}"

    async def code(self, credential: str, **changed: str | None) -> str:
        """A code that a person has allowed."""
        answer = await Person(self.url).sign_in(self.address(**changed), credential)
        assert answer.status == 303, answer.text
        return facts_of(answer)["code"]

    async def exchange(self, code: str, **changed: str) -> Answer:
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self.redirect}
        form |= {"client_id": self.id, "code_verifier": self.verifier, "resource": f"{self.url}/mcp/{self.office}"}
        return await send("POST", f"{self.url}/sign-in/token", data=form | changed)

    async def refresh(self, token: str, **changed: str) -> Answer:
        form = {"grant_type": "refresh_token", "refresh_token": token, "client_id": self.id, **changed}
        return await send("POST", f"{self.url}/sign-in/token", data=form)

    async def signed_in(self, credential: str) -> dict[str, Any]:
        """The tokens after a whole sign-in."""
        if not self.id:
            await self.register()
        answer = await self.exchange(await self.code(credential))
        assert answer.status == 200, answer.text
        return dict(answer.json)


def facts_of(answer: Answer) -> dict[str, str]:
    """What the address that a person is led to tells the client."""
    return {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["Location"]).query).items()}
