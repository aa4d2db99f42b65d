"""The documentation is correct: examples run, commands and links exist, the reference and translations are current."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from a2c_smcp.cli.app import build
from a2c_smcp.computer.configuration.files import loads, parse_configuration
from a2c_smcp.computer.consent.rules import parse_policy
from a2c_smcp.protocol.events import EVENTS
from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider
from reference.commands import environment
from reference.pages import FOLDER, PAGES
from tests.program import run_program
from tests.stage.site import PATIENCE, site
from tests.syntax import syntax_tree

__all__ = ["site"]

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
IMPORTED = re.compile(r"^ *(?:from|import) ([\w.]+)", re.MULTILINE)

TRANSLATED = ["index.md", "quick-start.md", "concepts.md", "server.md", "computer.md", "agent.md", "registry.md"]
"""The pages of `docs` that `docs/zh` has too."""
TWINS = {"README.md": ROOT / "README.zh-CN.md"} | {f"docs/{name}": DOCS / "zh" / name for name in TRANSLATED}


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    language: str
    text: str


def markdown() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def _blocks() -> Iterator[Block]:
    """Without the translations, whose code is compared with the original below."""
    for page in [page for page in markdown() if page not in TWINS.values()]:
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            yield Block(page, language, text)


BLOCKS = [*_blocks()]


def blocks(*languages: str) -> list[object]:
    """The blocks in one of these languages, as parameters of a test."""
    found = [block for block in BLOCKS if block.language in languages]
    return [pytest.param(block, id=f"{block.page.relative_to(ROOT)}-{number}") for number, block in enumerate(found)]


# Examples


def test_there_are_examples() -> None:
    assert min(len(blocks(language)) for language in ("python", "sh", "json", "toml")) >= 1


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_example_runs(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block.text, "utf-8")
    done = run_program(script=script, cwd=tmp_path, env={**os.environ, "PYTHONWARNINGS": "error"})
    assert done.returncode == 0, done.stderr


def test_what_examples_import_causes_no_warning() -> None:
    imported = {name for _, language, text in BLOCKS if language == "python" for name in IMPORTED.findall(text)}
    code = "\n".join(f"import {name}" for name in sorted(imported))
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("block", blocks("sh"))
def test_a_shell_example_can_be_pasted(block: Block) -> None:
    done = subprocess.run(["sh", "-n"], input=block.text, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr


def _commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell example, without variables before them and redirections after them."""
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


@cache
def _parser(command: str | None) -> Any:
    """It writes plain text: making it look well takes ten times as long as parsing."""
    app = build(command)
    app.rich_markup_mode = None
    return get_command(app)


@pytest.mark.parametrize("words", commands_of("a2c-smcp"))
def test_a_command_in_an_example_exists_with_its_options(words: tuple[str, ...]) -> None:
    """`--help` parses all words before it and has no other effect. A wrong word raises."""
    parser = _parser(words[0] if words else None)
    if words[:1] == ("add",) and "--" in words:
        words = words[: words.index("--")]  # the rest is the line of another program
    with redirect_stdout(StringIO()):
        assert parser.main([*words, "--help"], "a2c-smcp", standalone_mode=False) == 0


@pytest.mark.parametrize("words", commands_of("make"))
def test_a_make_target_in_an_example_exists(words: tuple[str, ...]) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [word for word in words if not re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE)] == []


@pytest.mark.parametrize("block", blocks("json", "toml"))
def test_a_file_in_an_example_can_be_read(block: Block, tmp_path: Path) -> None:
    """MCP servers and policies are read by our parsers, which must know every field; keys by the Server."""
    form = "toml" if block.language == "toml" else "json"
    data = loads(block.text) if form == "json" else tomllib.loads(block.text)
    if "rules" in data:
        assert parse_policy(data, block.page.name).rules
    elif form == "toml" or isinstance(data, list) or {"servers", "mcpServers", "inputs"} & data.keys():
        assert parse_configuration(block.text, block.page.name, form).unknown == ()
    elif any(name.startswith("sha256:") for name in data):
        keys = tmp_path / "keys.json"
        keys.write_text(block.text, "utf-8")
        DefaultAuthenticationProvider(keys_file=keys)


_environment = cache(lambda: [*environment()])


@cache
def _variables_in_the_code() -> set[str]:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "a2c_smcp").rglob("*.py"))
    return {*re.findall(r'"(A2C_[A-Z_]+)"', source)}


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in markdown()])
def test_a_variable_that_is_named_exists(page: Path) -> None:
    known = {variable for variable, _, _ in _environment()} | _variables_in_the_code()
    named = set(re.findall(r"\bA2C_(?!INPUT_|RET_|TOOL_)[A-Z_]*[A-Z]\b", page.read_text("utf-8")))
    assert named - known == set()


# Pages


def test_nothing_asks_the_package_index_for_this_package() -> None:
    """The package of this name on the index is another one."""
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


def test_files_folders_and_classes_that_the_architecture_names_exist() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = {word for code in re.findall(r"`([^`\n]+)`", page) for word in re.findall(r"[\w./]*\w/?", code)}
    modules = [*ROOT.glob("a2c_smcp/**/*.py"), *ROOT.glob("reference/*.py"), *ROOT.glob("tests/*.py")]
    modules += ROOT.glob("tools/*.py")
    paths = [f"/{path.relative_to(ROOT)}" for path in modules]
    folders = {f"{path.parent}/" for path in map(Path, paths)} | {f"/{path.name}/" for path in ROOT.iterdir()}
    defined = _defined({part for word in named for part in word.split(".")})
    assert [
        word for word in named if word.endswith(".py") and not any(path.endswith(f"/{word}") for path in paths)
    ] == []
    assert [
        word for word in named if word.endswith("/") and not any(path.endswith(f"/{word}") for path in folders)
    ] == []
    classes = {word for word in named if re.fullmatch(r"(?:\w+\.)*[A-Z][a-z]\w+(?:\.\w+)?", word)}
    assert [
        word for word in classes if not any(re.search(rf"(?:^|\.){re.escape(word)}$", name) for name in defined)
    ] == []
    source = "".join(path.read_text("utf-8") for path in modules)
    private = {name for word in named for name in re.findall(r"(?:^|\.)(_[A-Za-z]\w+)$", word)}
    assert [name for name in private if not re.search(rf"\b{name}\b", source)] == []
    assert len(page.splitlines()) <= 160, "three screens"
    assert max(map(len, page.splitlines())) <= 160, "a row is a line of a screen"


def test_modules_that_docstrings_and_comments_name_exist() -> None:
    texts = [path for folder in ("a2c_smcp", "tools") for path in (ROOT / folder).rglob("*.py")]
    known = [
        f"/{path}" for folder in ("a2c_smcp", "tests", "tools", "reference") for path in (ROOT / folder).rglob("*.py")
    ]
    named = {(path, word) for path in texts for word in re.findall(r"`([\w/]+\.py)`", path.read_text("utf-8"))}
    assert [
        (path.name, word) for path, word in sorted(named) if not any(each.endswith(f"/{word}") for each in known)
    ] == []


def _defined(names: Collection[str]) -> set[str]:
    """Classes of these names, their methods and fields, and all constants, with the module they are in."""
    found = set()
    for path in (ROOT / "a2c_smcp").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in syntax_tree(path).body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                inside = {
                    each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                }
                fields = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
                found |= {f"{module}.{node.name}", *(f"{module}.{node.name}.{name}" for name in inside | fields)}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {f"{module}.{each.id}" for each in targets if isinstance(each, ast.Name)}
    return found


def test_every_example_is_in_the_page_of_examples() -> None:
    page = (DOCS / "examples.md").read_text("utf-8")
    assert [
        path.name for path in sorted((ROOT / "examples").glob("*.py")) if f"`examples/{path.name}`" not in page
    ] == []


def test_links_lead_somewhere() -> None:
    """`make docs` also checks links to headings."""
    links = [
        (page, link) for page in markdown() for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8"))
    ]
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    loaded = r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(https?:)?//"""
    assert len(pages) > len(PAGES)
    assert [page.name for page in pages if re.search(loaded, page.read_text("utf-8"))] == []


def test_every_page_is_there_for_programs_and_their_links_lead_somewhere(site: Path) -> None:
    listed = re.findall(r"^- \[.+?\]\((.+?)\): \S", (site / "llms.txt").read_text("utf-8"), re.MULTILINE)
    pages = {str(page.relative_to(site).with_suffix(".md")) for page in site.rglob("*.html")} - {"404.md"}
    assert len(listed) == len(pages)
    assert {*listed} == pages == {str(page.relative_to(site)) for page in site.rglob("*.md")}
    links = [
        (page, link)
        for page in site.rglob("*.md")
        for link in re.findall(r"""(?:\]\(|src=")(?!https?:)([^)#"]+)""", page.read_text("utf-8"))
    ]
    assert len(links) > len(pages)
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_links_of_the_architecture_lead_to_pages(site: Path) -> None:
    links = re.findall(r'href="([^":#]+)"', (site / "ARCHITECTURE.html").read_text("utf-8"))
    assert [link for link in links if not (site / link).exists()] == []


def test_a_table_with_sentences_in_one_of_many_columns_is_a_list_of_rows_on_a_phone(site: Path) -> None:
    command_line, performance = (
        (site / page).read_text("utf-8") for page in ("reference/cli.html", "performance.html")
    )
    assert "<table data-stacked>" in command_line
    assert '<td data-label="environment"><code>A2C_SERVER_PORT</code></td>' in command_line
    assert "<table>" in performance, "numbers are compared in columns"
    assert '<code><span class="unbroken">--version</span></code>' in command_line


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
    """The fixed parts of each message are in the source. One message comes from OpenSSL."""
    page = (DOCS / "troubleshooting.md").read_text("utf-8")
    source = "".join(_in_one_piece(path.read_text("utf-8")) for path in (ROOT / "a2c_smcp").rglob("*.py"))
    pieces = [piece.strip() for row in re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE) for piece in row.split("…")]
    assert [piece for piece in pieces if piece not in source] == ["certificate verify failed"]


def _in_one_piece(source: str) -> str:
    """The source with string literals of several lines joined."""
    return re.sub(r'"\s*\n\s*f?"', "", source)


# Translations

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CHINESE = re.compile("[\u4e00-\u9fff]")
LINE_BREAK = re.compile(r"[\u3000-\u9fff\uff00-\uffef]\n *[\u3000-\u9fff\uff00-\uffef]")


@pytest.fixture(params=TWINS)
def twins(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The text of an English page and of its Chinese translation."""
    return (ROOT / request.param).read_text("utf-8"), TWINS[request.param].read_text("utf-8")


def _code(text: str) -> list[tuple[str, str]]:
    """Code blocks without their comments. A block without a language is a drawing, whose words are translated."""
    return [
        (language, re.sub(r"\s*# .*", "", code) if language in ("sh", "python") else code)
        for language, code in FENCE.findall(text)
        if language
    ]


def _sections(text: str) -> list[str]:
    return re.split(r"^#+ .*$", FENCE.sub("", text), flags=re.MULTILINE)


def _terms(section: str) -> set[str]:
    """The parts that are the same in every language: code and numbers. Links are left out."""
    words = re.sub(r"\]\([^)]*\)", "]", section)
    numbers = re.findall(r"(?<![\w.])\d(?:[\d,.]*\d)?", re.sub("`[^`]*`", "", words))
    return {*re.findall("`[^`]*`", words), *numbers}


def test_every_chinese_page_is_a_translation() -> None:
    assert sorted(path.name for path in (DOCS / "zh").glob("*.md")) == sorted(TRANSLATED)


def test_a_translation_has_the_same_headings_lists_tables_and_pictures(twins: tuple[str, str]) -> None:
    for pattern in (r"^#+ ", r"^ *(?:-|\d+\.) ", r"^\| ", r"images/\w+\.svg"):
        english, chinese = (re.findall(pattern, FENCE.sub("", text), re.MULTILINE) for text in twins)
        assert english == chinese, pattern


def test_a_translation_has_the_same_code(twins: tuple[str, str]) -> None:
    english, chinese = map(_code, twins)
    assert english == chinese


def test_a_translation_has_the_same_terms_and_numbers_in_every_section(twins: tuple[str, str]) -> None:
    english, chinese = map(_sections, twins)
    for left, right in zip(english, chinese, strict=True):
        assert _terms(left) == _terms(right), left


def test_a_translation_links_to_translations(twins: tuple[str, str]) -> None:
    """Only the index also links to its English original."""
    links = set(re.findall(r"\]\(([^)#]+\.md)", twins[1]))
    assert links & ({f"../{name}" for name in TRANSLATED} - {"../index.md"}) == set()
    assert links & {f"docs/{name}" for name in TRANSLATED} == set()


def test_chinese_text_is_not_broken_into_lines(twins: tuple[str, str]) -> None:
    """A browser shows a line break as a space, which Chinese text does not have."""
    assert LINE_BREAK.findall(FENCE.sub("", twins[1])) == []


@pytest.mark.parametrize("name", [path.name for path in sorted((DOCS / "images").glob("*.svg"))])
def test_a_picture_is_translated(name: str) -> None:
    english, chinese = ((DOCS / folder / name).read_text("utf-8") for folder in ("images", "zh/images"))
    assert CHINESE.search(chinese)
    shapes = [re.sub(r"(?<=>)[^<]+|(?<=aria-label=)\"[^\"]*\"", "", text) for text in (english, chinese)]
    assert shapes[0] == shapes[1]


def test_chinese_pages_say_so_and_have_chinese_menus(site: Path) -> None:
    page, english = ((site / folder / "server.html").read_text("utf-8") for folder in ("zh", ""))
    assert '<html lang="zh"' in page
    assert '<html lang="en"' in english
    menu = re.findall(r'<li class="md-tabs__item.*?</li>', page, re.DOTALL)
    assert [re.sub(r"<.*?>", "", item).strip() for item in menu] == ["首页", "入门", "指南", "参考", "English"]
    assert all(f'hreflang="{language}"' in text for language in ("en", "zh") for text in (page, english))
