"""FastMCP's server with the extension for skills, over stdio: `fastmcp_skills_server.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from fastmcp import FastMCP
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills.extension import SkillsExtension

server = FastMCP("docs")
provider = SkillsDirectoryProvider(roots=Path(sys.argv[1]), reload=True, experimental_skills=True)
server.add_provider(provider)
server.add_extension(SkillsExtension(providers=[provider]))
server.run(show_banner=False)
