"""Another program on this machine that browsers are sent to, and its owner, who replays what they bring."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlencode, urlsplit


@dataclass
class OtherPort:
    """`page` is what it answers, or `script` to `/script.js`. `seen` has the headers of all requests of browsers."""

    url: str
    page: str = "<!doctype html>nothing"
    script: str = ""
    seen: list[dict[str, str]] = field(default_factory=list)

    def replay(self, victim: str, path: str, form: Mapping[str, str] | None = None) -> list[tuple[int, str]]:
        """Send what was seen to another port: as it came, and each cookie as each credential. Returns the answers."""
        brought = [{name: value for name, value in seen.items() if name.lower() != "host"} for seen in self.seen]
        for seen in [*brought]:
            for cookie in seen.get("Cookie", "").split("; "):
                brought.append({**seen, "X-A2C-Session": cookie.partition("=")[2]})
        return [self._ask(victim, path, headers, form) for headers in (*brought, {"X-A2C-Session": ""}, {})]

    def _ask(self, victim: str, path: str, headers: dict[str, str], form: Mapping[str, str] | None) -> tuple[int, str]:
        address = urlsplit(victim)
        connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=60)
        sent = {**headers, "Host": address.netloc, "Origin": victim, "Sec-Fetch-Site": "same-origin"}
        body = None if form is None else urlencode(form)
        connection.request("GET" if body is None else "POST", path, body, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


@contextmanager
def other_port(host: str = "127.0.0.1") -> Iterator[OtherPort]:
    other: OtherPort

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            other.seen.append(dict(self.headers.items()))
            is_script = self.path == "/script.js"
            content = (other.script if is_script else other.page).encode()
            self.send_response(200)
            self.send_header("Content-Type", f"text/{'javascript' if is_script else 'html'}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer((host, 0), Handler)
    other = OtherPort(f"http://{host}:{server.server_address[1]}")
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield other
    finally:
        server.shutdown()
        server.server_close()
