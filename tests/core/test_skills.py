"""Names of skills, paths and MIME types of their files, by the vectors that the published 0.4.2 gave."""

from __future__ import annotations

import pytest

from a2c_smcp.protocol.skills import fault_in_rel_path, is_skill_name, is_skill_part, is_text_type, mime_type_of

LONGEST = "a" * 64


@pytest.mark.parametrize(
    "name", ["a", "a-b", "p:s", "mcp:x", "mcp:My_Srv:s", "9", "a1-2b", LONGEST, f"{LONGEST}:{LONGEST}", "mcp:-_-:s"]
)
def test_these_are_names_of_skills(name: str) -> None:
    assert is_skill_name(name)


def test_the_bundle_id_in_a_name_may_be_long() -> None:
    assert is_skill_name(f"mcp:{'x' * 10_000}:s")


@pytest.mark.parametrize(
    "name",
    [
        *("a--b", "-a", "a-", "A", "a_b", "x:y:z", "mcp:a__b:s", "a:b:c:d", "mcp:a:b:c", "", ":", "a:", ":a", "::"),
        *(
            "a" * 65,
            "mcp::s",
            "mcp:x:",
            "mcp:x:A",
            "mcp:a b:s",
            "MCP:a:s",
            "a\n",
            "a\n:b",
            "mcp:a\n:s",
            "ä",
            "１",
            " a",
        ),
        *("..", "a/b", "a.b", "../a", "mcp:..:s", "mcp:a/b:s"),
    ],
)
def test_these_are_not(name: str) -> None:
    assert not is_skill_name(name)
    assert not is_skill_part(name)


@pytest.mark.parametrize("path", ["SKILL.md", "a/b.md", "./a", "a//b", ".hidden", "a..b", "...", "é", "", ".skillenvs"])
def test_these_paths_may_be_looked_for(path: str) -> None:
    assert fault_in_rel_path(path) is None


@pytest.mark.parametrize(
    "path",
    ["..", "../x", "a/../b", "a/..", "/etc/passwd", "/", "a\\b", "\\", "C:x", "a/b:stream", ":", "//x", "../.skillenv"],
)
def test_these_paths_leave_the_skill(path: str) -> None:
    assert fault_in_rel_path(path) == "traversal"


@pytest.mark.parametrize(
    "path", [".skillenv", "a/.skillenv", ".SKILLENV", "a/.SkillEnv", ".skillenv/", "./.skillenv/."]
)
def test_the_private_file_is_forbidden_in_any_spelling(path: str) -> None:
    assert fault_in_rel_path(path) == "forbidden"


@pytest.mark.parametrize(
    ("path", "mime_type", "is_text"),
    [
        ("SKILL.md", "text/markdown", True),
        ("a/b.MARKDOWN", "text/markdown", True),
        ("a.txt", "text/plain", True),
        ("conf.json", "application/json", True),
        ("a.xml", "application/xml", True),
        ("a.yml", "application/yaml", True),
        ("a.toml", "application/toml", True),
        ("a.rst", "text/x-rst", True),
        ("a.svg", "image/svg+xml", True),
        ("a.png", "image/png", False),
        ("a.JPG", "image/jpeg", False),
        ("a.ico", "image/vnd.microsoft.icon", False),
        ("a.tar.gz", "application/gzip", False),
        ("a.woff2", "font/woff2", False),
        ("a.mp3", "audio/mpeg", False),
        ("a.webm", "video/webm", False),
        ("scripts/run.py", "application/octet-stream", False),
        ("a.csv", "application/octet-stream", False),
        ("a.html", "application/octet-stream", False),
        ("LICENSE", "application/octet-stream", False),
        (".md", "application/octet-stream", False),
    ],
)
def test_the_type_of_a_file_is_that_of_its_extension(path: str, mime_type: str, is_text: bool) -> None:
    assert mime_type_of(path) == mime_type
    assert is_text_type(mime_type) is is_text


@pytest.mark.parametrize("mime_type", ["Text/HTML; charset=utf-8", "application/vnd.x+JSON", "application/javascript"])
def test_parameters_and_case_of_a_type_do_not_matter(mime_type: str) -> None:
    assert is_text_type(mime_type)
