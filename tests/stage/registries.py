"""A registry of npm and an index of PyPI on this machine. The real tools install small MCP servers from them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

JAVASCRIPT = """#!/usr/bin/env node
const fs = require("fs");
const tools = TOOLS.map((name) => ({ name, description: "DESCRIPTION", inputSchema: { type: "object" } }));
const about = { capabilities: { tools: {} }, serverInfo: { name: "x", version: "1" } };
const ran = {
  words: () => process.argv.slice(2).join(" "),
  home: () => process.env.HOME + " " + process.cwd(),
  read: ({ path }) => fs.readFileSync(path, "utf8"),
  write: ({ path }) => (fs.writeFileSync(path, "x"), "written"),
};
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method, params } = JSON.parse(line);
  if (id === undefined) return;
  const say = (more) => console.log(JSON.stringify({ jsonrpc: "2.0", id, ...more }));
  if (method === "initialize")
    return say({ result: { ...about, protocolVersion: params.protocolVersion } });
  if (method === "tools/list") return say({ result: { tools } });
  if (method !== "tools/call") return say({ error: { code: -32601, message: "unknown" } });
  try {
    say({ result: { content: [{ type: "text", text: ran[params.name](params.arguments) }] } });
  } catch (error) {
    say({ result: { isError: true, content: [{ type: "text", text: String(error) }] } });
  }
});
"""

PYTHON = """
import json, os, sys

def main():
    ran = {
        "words": lambda _: " ".join(sys.argv[1:]),
        "home": lambda _: os.environ["HOME"] + " " + os.getcwd(),
        "read": lambda given: open(given["path"]).read(),
        "write": lambda given: str(open(given["path"], "w").write("x")),
    }
    tools = [{"name": name, "description": "DESCRIPTION", "inputSchema": {"type": "object"}} for name in TOOLS]
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        answer = {"error": {"code": -32601, "message": "unknown"}}
        if asked["method"] == "initialize":
            version = asked["params"]["protocolVersion"]
            about = {"name": "x", "version": "1"}
            answer = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
        elif asked["method"] == "tools/list":
            answer = {"result": {"tools": tools}}
        elif asked["method"] == "tools/call":
            given = asked["params"]
            try:
                result = {"content": [{"type": "text", "text": ran[given["name"]](given.get("arguments"))}]}
            except OSError as error:
                result = {"isError": True, "content": [{"type": "text", "text": str(error)}]}
            answer = {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""

TOOLS = ("words", "home", "read", "write")


class Registries:
    """What both serve. `environ` leads npm and pip there, and to nothing else."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._files: dict[str, bytes] = {}
        self._npm: dict[str, dict[str, Any]] = {}
        self._pypi: dict[str, dict[str, str]] = {}
        self.environ = {
            "npm_config_registry": f"{url}/npm/",
            "npm_config_update_notifier": "false",
            "PIP_INDEX_URL": f"{url}/simple",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_FIND_LINKS": "",
            "PIP_EXTRA_INDEX_URL": "",
        }

    def npm(
        self,
        name: str,
        version: str,
        *,
        tools: tuple[str, ...] = TOOLS,
        says: str = "A tool",
        program: str | None = None,
        by: str = "ann",
        checksum: str | None = None,
        **more: Any,
    ) -> None:
        """Publish a server. `checksum` is a wrong one that the registry states, `more` are fields of package.json."""
        source = JAVASCRIPT.replace("TOOLS", json.dumps(tools)).replace("DESCRIPTION", says)
        about = {"name": name, "version": version, "bin": {program or name.rpartition("/")[2]: "main.js"}, **more}
        content = _tarball({"package.json": json.dumps(about), "main.js": source})
        path = f"/files/{name.replace('/', '-')}-{version}.tgz"
        self._files[path] = content
        integrity = checksum or f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
        stated = {
            **about,
            "dist": {"tarball": f"{self.url}{path}", "integrity": integrity},
            "_npmUser": {"name": by, "email": f"{by}@example.org"},
            "hasInstallScript": "install" in more.get("scripts", {}),
        }
        known = self._npm.setdefault(name, {"name": name, "dist-tags": {}, "versions": {}})
        known["versions"][version] = stated
        known["dist-tags"]["latest"] = version

    def pypi(
        self,
        name: str,
        version: str,
        *,
        tools: tuple[str, ...] = TOOLS,
        says: str = "A tool",
        by: str = "Ann",
        program: str | None = None,
        needs: str = "",
        checksum: str | None = None,
    ) -> None:
        """Publish a wheel with a server."""
        module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
        source = PYTHON.replace("TOOLS", repr(tools)).replace("DESCRIPTION", says)
        content = _wheel(
            {
                f"{module}.py": source,
                f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nAuthor: {by}\n"
                + (f"Requires-Dist: {needs}\n" if needs else ""),
                f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                f"{info}/entry_points.txt": f"[console_scripts]\n{program or name} = {module}:main\n",
            },
            info,
        )
        path = f"/files/{module}-{version}-py3-none-any.whl"
        self._files[path] = content
        self._pypi.setdefault(name, {})[path] = checksum or hashlib.sha256(content).hexdigest()

    def answer(self, path: str) -> bytes | None:
        if path.startswith("/npm/"):
            known = self._npm.get(unquote(path.removeprefix("/npm/")))
            return json.dumps(known).encode() if known else None
        if path.startswith("/simple/"):
            files = self._pypi.get(path.removeprefix("/simple/").strip("/"), {})
            links = (
                f'<a href="{file}#sha256={digest}">{file.rpartition("/")[2]}</a>' for file, digest in files.items()
            )
            return "".join(links).encode() if files else None
        return self._files.get(path)


def _tarball(files: Mapping[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size, member.mode = len(text.encode()), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
    return held.getvalue()


def _wheel(files: Mapping[str, str], info: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD")))
    return held.getvalue()


@contextmanager
def registries() -> Iterator[Registries]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = served.answer(self.path.partition("?")[0])
            self.send_response(404 if content is None else 200)
            is_page = self.path.startswith("/simple")
            self.send_header("Content-Type", "text/html" if is_page else "application/octet-stream")
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *words: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Registries(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield served
        server.shutdown()
        thread.join()
