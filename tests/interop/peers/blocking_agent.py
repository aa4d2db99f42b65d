"""The blocking agent of the published 0.4.2: uses a computer once, prints what it got as one line of JSON, and ends."""

from __future__ import annotations

import lines  # isort: skip

from base64 import b64decode
from hashlib import sha256
from typing import Any

from a2c_smcp.agent.auth import DefaultAgentAuthProvider
from a2c_smcp.agent.sync_client import SMCPAgentClient

KINDS = ("image", "audio", "resource")


def contents(result: Any) -> bytes:
    item = result.content[0]
    return b64decode(item.resource.blob if item.type == "resource" else item.data)


def drained(client: SMCPAgentClient, computer: str, handle: str, size: int) -> bytes:
    content = b""
    while len(content) < size:
        content += b64decode(client.get_blob(computer, handle, chunk_offset=len(content))["blob"])
    return content


def used(client: SMCPAgentClient, computer: str, size: int) -> dict[str, Any]:
    config: dict[str, Any] = client.get_config_from_computer(computer)
    server = next(each["bundle_id"] for each in config["servers"].values())
    skill = client.get_skill(computer, "notes", "data.bin")
    whole = drained(client, computer, skill["blob_handle"], skill["total_size"])
    sent = client.put_blob(computer, whole, name_hint="../a b.bin")
    pictures = {
        kind: client.emit_tool_call(computer, "picture", {"size": size, "kind": kind}, 20) for kind in KINDS
    }
    return {
        "pictures": {kind: len(contents(each)) for kind, each in pictures.items()},
        "resources": [each["uri"] for each in client.get_resources(computer, server)["resources"]],
        "skills": [each["name"] for each in client.get_skills(computer)["skills"]],
        "text": client.get_skill(computer, "notes")["body"],
        "skill": sha256(whole).hexdigest(),
        "landed": str(sent.landing_path),
    }


def main() -> None:
    parser = lines.options()
    parser.add_argument("--computer", required=True)
    parser.add_argument("--size", type=int, required=True)
    args = parser.parse_args()
    client = SMCPAgentClient(DefaultAgentAuthProvider(args.name, args.office, args.api_key))
    client.connect_to_server(args.url)
    client.join_office(args.office, args.name, namespace=lines.NAMESPACE)
    lines.heard("used", used(client, args.computer, args.size))
    client.disconnect()


if __name__ == "__main__":
    main()
