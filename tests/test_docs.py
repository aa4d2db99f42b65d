"""The documentation is true: its examples run, its commands exist, its files can be read, its reference is current."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from a2c_smcp.cli.app import build
from a2c_smcp.computer.configuration.files import loads, parse_configuration
from a2c_smcp.protocol.events import EVENTS
from a2c_smcp.server.auth.authentication import DefaultAuthenticationProvider
from reference.commands import environment
from reference.pages import FOLDER, PAGES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE_TOOLS = ROOT / ".cache" / "docs"
PATIENCE = 120


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    text: str


def markdown() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def _blocks() -> Iterator[Block]:
    for page in markdown():
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            yield Block(page, language, text)


BLOCKS = [*_blocks()]


def blocks(*languages: str) -> list[object]:
    """Those in one of these languages, as parameters of a test."""
    found = [block for block in BLOCKS if block.language in languages]
    return [pytest.param(block, id=f"{block.page.relative_to(ROOT)}-{number}") for number, block in enumerate(found)]


# Examples


def test_there_are_examples() -> None:
    assert min(len(blocks(language)) for language in ("python", "sh", "json", "toml")) >= 1


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_example_runs(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.text, "utf-8")
    command = [sys.executable, "-W", "error", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", blocks("sh"))
def test_a_shell_example_can_be_pasted(block: Block) -> None:
    done = subprocess.run(["sh", "-n"], input=block.text, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def _commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell example, without what is set before them and what becomes of their output."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if word in ("|", "&&", "||", ";", "&"):
                yield command
                command = []
            elif command or not re.match(r"[A-Z_0-9]+=|sudo$", word):
                command.append(word)


def commands_of(program: str) -> list[object]:
    found = {
        (block.page, *command[1:])
        for block in BLOCKS
        if block.language == "sh"
        for command in _commands(block)
        if command[:1] == [program]
    }
    return [
        pytest.param(words[1:], id=f"{words[0].relative_to(ROOT)}: {shlex.join(words[1:])}") for words in sorted(found)
    ]


@pytest.mark.parametrize("words", commands_of("a2c-smcp"))
def test_a_command_in_an_example_exists_with_its_options(words: tuple[str, ...]) -> None:
    """Asking for help parses all that stands before it, and does nothing else."""
    done = CliRunner().invoke(build(words[0] if words else None), [*words, "--help"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("words", commands_of("make"))
def test_a_make_target_in_an_example_exists(words: tuple[str, ...]) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [word for word in words if not re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("block", blocks("json", "toml"))
def test_a_file_in_an_example_can_be_read(block: Block, tmp_path: Path) -> None:
    """MCP servers by our own reader, where no field may be unknown; keys by the Server; anything else is JSON."""
    form = "toml" if block.language == "toml" else "json"
    data = loads(block.text) if form == "json" else None
    if form == "toml" or isinstance(data, list) or {"servers", "mcpServers", "inputs"} & data.keys():
        assert parse_configuration(block.text, block.page.name, form).unknown == ()
    elif any(name.startswith("sha256:") for name in data):
        keys = tmp_path / "keys.json"
        keys.write_text(block.text, "utf-8")
        DefaultAuthenticationProvider(keys_file=keys)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in markdown()])
def test_a_variable_that_is_named_exists(page: Path) -> None:
    known = {variable for variable, _, _ in environment()}
    named = set(re.findall(r"\bA2C_(?!INPUT_|RET_|TOOL_)[A-Z_]*[A-Z]\b", page.read_text("utf-8")))
    assert named - known == set()


# Pages


def test_nothing_asks_the_package_index_for_this_package() -> None:
    """There, its name is another package."""
    texts = [*markdown(), *(ROOT / "a2c_smcp").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    asks = re.compile(r"(?:pip|pipx|uv tool) install (?:-\S+ )*['\"]?a2c[-_]smcp\b")
    assert [path.name for path in texts if asks.search(path.read_text("utf-8"))] == []


def test_files_of_the_project_that_are_named_exist() -> None:
    pattern = r"(?<![\w./-])(?:examples|benchmarks|reference|tests|docs)/[\w./-]*\w\.(?:py|md|txt|in)\b"
    named = {(page, path) for page in markdown() for path in re.findall(pattern, page.read_text("utf-8"))}
    assert [
        (page.name, path)
        for page, path in sorted(named)
        if not any((home / path).exists() for home in (ROOT, page.parent))
    ] == []


def test_every_example_is_in_the_page_of_examples() -> None:
    page = (DOCS / "examples.md").read_text("utf-8")
    assert [
        path.name for path in sorted((ROOT / "examples").glob("*.py")) if f"`examples/{path.name}`" not in page
    ] == []


def test_links_lead_somewhere() -> None:
    """Inside the site, `make docs` also looks at the headings that are linked to."""
    links = [
        (page, link) for page in markdown() for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))
    ]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: every page is in the navigation, every link and heading that is linked to exists."""
    assert (SITE_TOOLS / ".ready").exists(), f"{SITE_TOOLS} is missing, run `make docs`"
    folder = tmp_path_factory.mktemp("site")
    command = [SITE_TOOLS / "bin" / "python", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, env={"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    loaded = r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(https?:)?//"""
    assert len(pages) > len(PAGES)
    assert [page.name for page in pages if re.search(loaded, page.read_text("utf-8"))] == []


@pytest.mark.skipif(not shutil.which("node"), reason="no Node.js here")
def test_the_search_of_the_site_finds_options_and_variables_as_they_are_written(site: Path) -> None:
    """With the index that pages use which are opened as files."""
    queries = {"--redis": "a2c-smcp-server", "--idle-stop": "a2c-smcp-up", "A2C_OFFICE": "a2c-smcp-agent", "a--b": ""}
    command = ["node", ROOT / "tests" / "site_search.js", site, *queries]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    for section, line in zip(queries.values(), done.stdout.splitlines(), strict=True):
        assert (f"reference/cli.html#{section}" in json.loads(line)) == bool(section)


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_is_what_the_code_says(name: str) -> None:
    is_current = (FOLDER / name).read_text("utf-8") == PAGES[name]()
    assert is_current, f"docs/reference/{name} is not what the code says any more: run `make reference`"


def test_every_event_is_in_the_protocol_page() -> None:
    page = (DOCS / "protocol.md").read_text("utf-8")
    names = [name for event in EVENTS for name in (event.name, event.notice, event.older, event.older_notice) if name]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_code_is_in_the_troubleshooting_page() -> None:
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    codes = set(re.findall(r"\| (\d+) \|", (FOLDER / "errors.md").read_text("utf-8")))
    assert [code for code in sorted(codes) if f"### {code}\n" not in page] == []


def test_every_message_in_the_troubleshooting_page_is_one_of_ours() -> None:
    """Piece by piece, between what is filled in; but for those that come from below."""
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    source = "".join(_in_one_piece(path.read_text("utf-8")) for path in (ROOT / "a2c_smcp").rglob("*.py"))
    pieces = [piece.strip() for row in re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE) for piece in row.split("…")]
    assert [piece for piece in pieces if piece not in source] == ["certificate verify failed"]


def _in_one_piece(source: str) -> str:
    """With texts that go on in the next line joined."""
    return re.sub(r'"\s*\n\s*f?"', "", source)


# Twins


def test_the_readmes_are_twins() -> None:
    english, chinese = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
    for pattern in (r"^## ", r"^```\w*$", r"^- \*\*", r"^\| ", r"^(?:make|pip|a2c-smcp) .*?(?= {2,}|$)"):
        found = [re.findall(pattern, text, re.MULTILINE) for text in (english, chinese)]
        assert found[0] == found[1], pattern


@pytest.mark.parametrize("name", [page.name for page in sorted((DOCS / "zh").glob("*.md"))])
def test_a_chinese_page_is_the_twin_of_the_english_one(name: str) -> None:
    english, chinese = ((folder / name).read_text("utf-8") for folder in (DOCS, DOCS / "zh"))
    for pattern in (r"^#+ ", r"^- ", r"^```sh\n.*?^```", r"images/\w+\.svg"):
        found = [re.findall(pattern, text, re.DOTALL | re.MULTILINE) for text in (english, chinese)]
        assert found[0] == found[1], pattern
