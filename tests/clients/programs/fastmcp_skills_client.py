"""FastMCP's client with the extension for skills: prints the skills, and whether each file is as it is listed."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys

from fastmcp.client import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
from fastmcp.exceptions import McpError
from fastmcp.skills import SkillsClientExtension


def transport(target):
    if "command" in target:
        return StdioTransport(**target)
    return StreamableHttpTransport(target["url"], headers=target["headers"])


def bytes_of(content):
    return content.text.encode() if hasattr(content, "text") else base64.b64decode(content.blob)


async def main(target, wanted):
    async with Client(transport(target), mode="auto", extensions=[SkillsClientExtension()]) as client:
        skills = []
        while len(skills) < wanted:
            skills = await client.list_skills(cache_mode="bypass")
        found = {}
        for skill in skills:
            assert await client.get_skill(skill.uri) == skill
            files = {}
            for file in skill.resources:
                (content,) = await client.read_resource(file.uri)
                whole = bytes_of(content)
                digest = f"sha256:{hashlib.sha256(whole).hexdigest()}"
                files[file.uri.removeprefix(skill.uri.removesuffix("SKILL.md"))] = (digest, len(whole)) == (
                    file.digest,
                    file.size,
                )
            found[skill.uri] = {"frontmatter": skill.frontmatter.root, "files": files}
        try:
            await client.get_skill("skill://laptop/none/SKILL.md")
        except McpError as error:
            found["unknown"] = error.error.code
    print(json.dumps(found))


asyncio.run(main(json.loads(sys.argv[1]), int(sys.argv[2])))
