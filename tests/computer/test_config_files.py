"""Configuration files: their shapes, JSON with comments, TOML, and what is said of a file that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2c_smcp.computer.configuration.files import Configuration, Format, loads, parse_configuration, read_configuration
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.servers import SSEConfig, StdioConfig, StreamableConfig
from tests.computer.decorated import decorated, gaps

pytestmark = pytest.mark.covers("config-files")

FILES = {"command": "npx", "args": ["-y", "server-files"]}
WEB = {"type": "http", "url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${input:token}"}}
TOKEN = {"type": "promptString", "id": "token", "description": "Token", "password": True}


def refusal(text: str, form: Format = "json") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_configuration(text, "mcp.json", form)
    assert caught.value.message.startswith("Bad configuration: mcp.json: ")
    return caught.value.message.removeprefix("Bad configuration: mcp.json: ")


# Shapes


@pytest.mark.parametrize(
    "data",
    [
        {"servers": {"files": FILES, "web": WEB}, "inputs": [TOKEN]},
        {"servers": [{**FILES, "name": "files"}, {**WEB, "name": "web"}], "inputs": [TOKEN]},
        {"mcpServers": {"files": FILES, "web": WEB}, "inputs": [TOKEN]},
        {"mcpServers": {"files": FILES}, "servers": {"web": WEB}, "inputs": [TOKEN], "globalShortcut": "Ctrl+Space"},
    ],
    ids=["servers", "servers as a list", "mcpServers", "both"],
)
def test_the_same_configuration_in_every_shape(data: dict[str, Any]) -> None:
    found = parse_configuration(json.dumps(data))
    types = {name: type(server) for name, server in found.servers.items()}
    assert types == {"files": StdioConfig, "web": StreamableConfig}
    assert (found.servers["files"].name, [*found.inputs], found.unknown) == ("files", ["token"], ())


def test_a_list_of_configurations_or_one() -> None:
    one = {"name": "files", **FILES}
    found = parse_configuration(json.dumps([one, {"url": "https://h/sse", "name": "old"}]))
    assert [type(server) for server in found.servers.values()] == [StdioConfig, SSEConfig]
    for inputs in ({}, {"inputs": [TOKEN]}):
        found = parse_configuration(json.dumps({**one, **inputs}))
        assert (list(found.servers), len(found.inputs), found.unknown) == (["files"], len(inputs), ())


def test_the_answer_to_get_config_is_a_configuration() -> None:
    text = """{"inputs": null, "servers": {"files": {"name": "files", "disabled": false, "forbidden_tools": [],
        "tool_meta": {}, "default_tool_meta": null, "vrl": null, "type": "stdio", "server_parameters": {"command": "x",
        "args": [], "env": null, "cwd": null, "encoding": "utf-8", "encoding_error_handler": "strict"}}}}"""
    assert list(parse_configuration(text).servers) == ["files"]


@pytest.mark.parametrize("text", ['{"inputs": []}', '{"servers": {}}', '{"servers": [], "inputs": null}', "[]"])
def test_a_file_may_be_empty_of_one_or_the_other(text: str) -> None:
    assert parse_configuration(text) == Configuration()


def test_a_file_of_an_editor_with_comments() -> None:
    text = """
    // servers that this project needs
    {
        "inputs": [
            { "type": "promptString", "id": "token", "description": "Token", "password": true, },
            { "type": "pickString", "id": "region", "options": ["eu", { "label": "America", "value": "us" }] }, // two
        ],
        "servers": {
            /* the official one,
               over HTTP */
            "github": { "type": "http", "url": "https://api.example.com/mcp/", "gallery": true },
            "files": { "command": "npx", "args": ["-y", "files", "//not/a/comment", "/* nor this */",], },
        },
    }
    """
    found = parse_configuration(text)
    files = found.servers["files"]
    assert isinstance(files, StdioConfig)
    assert files.server_parameters.args == ["-y", "files", "//not/a/comment", "/* nor this */"]
    assert found.unknown == ("servers.github.gallery is an unknown field and is ignored",)
    assert list(found.inputs) == ["token", "region"]


TABLES = """
[servers.files]
command = "npx" # a comment
[servers.files.env]
TOKEN = "${input:token}"
[[inputs]]
type = "promptString"
id = "token"
"""
INLINE = """
inputs = [{ type = "promptString", id = "token" }]
[[servers]]
name = "files"
command = "npx"
env = { TOKEN = "${input:token}" }
"""


@pytest.mark.parametrize("text", [TABLES, INLINE], ids=["tables", "inline"])
def test_toml_has_the_same_shapes(text: str) -> None:
    found = parse_configuration(text, form="toml")
    files = found.servers["files"]
    assert isinstance(files, StdioConfig)
    assert files.server_parameters.env == {"TOKEN": "${input:token}"}
    assert list(found.inputs) == ["token"]


def test_a_misspelt_field_is_named_with_the_nearest_one() -> None:
    server = {"command": "x", "argz": [], "tool_metta": {}, "default_tool_meta": {"auto_aply": True}, "Env": {}}
    entry = {"type": "promptString", "id": "k", "pasword": True}
    found = parse_configuration(json.dumps({"servers": {"a": server}, "inputs": [entry], "input": [], "theme": 1}))
    assert sorted(found.unknown) == [
        "input is an unknown field and is ignored, did you mean 'inputs'?",
        "inputs.k.pasword is an unknown field and is ignored, did you mean 'password'?",
        "servers.a.Env is an unknown field and is ignored, did you mean 'env'?",
        "servers.a.argz is an unknown field and is ignored, did you mean 'args'?",
        "servers.a.default_tool_meta.auto_aply is an unknown field and is ignored, did you mean 'auto_apply'?",
        "servers.a.tool_metta is an unknown field and is ignored, did you mean 'tool_meta'?",
    ]


# Files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mcp.json", '{"servers": {"files": {"command": "npx"}}}'),
        ("mcp.json", '\ufeff{"servers": {"files": {"command": "npx"}}}'),
        ("mcp.jsonc", '{"servers": {"files": {"command": "npx",}}} // done'),
        (".mcprc", '{"servers": {"files": {"command": "npx"}}}'),
        ("mcp.toml", '[servers.files]\ncommand = "npx"'),
        ("MCP.TOML", '[servers.files]\r\ncommand = "npx"\r\n'),
    ],
)
def test_a_file_is_read_by_its_ending(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, "utf-8", newline="")
    assert list(read_configuration(tmp_path / name).servers) == ["files"]
    assert read_configuration(str(tmp_path / name)) == read_configuration(tmp_path / name)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json: there is no such file$"):
        read_configuration(tmp_path / "nowhere.json")
    (tmp_path / "servers.json").touch()
    with pytest.raises(ConfigError, match=r"there is no such file, did you mean 'servers\.json'\?$"):
        read_configuration(tmp_path / "server.json")
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        read_configuration(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"servers": "\xff"}', "mcp.json: not UTF-8 text, at byte 13"),
        (b'{"servers": {"files": {"command": 5}}}', "mcp.json: server 'files': command: must be a string"),
    ],
    ids=["not text", "not a command"],
)
def test_a_fault_in_a_file_names_the_file_and_where(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "mcp.json").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_configuration(tmp_path / "mcp.json")
    assert caught.value.message.endswith(said)


# Faults


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "line 1, column 1"),
        ("{", "line 1, column 2"),
        ('{"servers": }', "line 1, column 13"),
        ('{"servers": {\n  "files": {"command" "npx"}}}', "line 2, column 23"),
        ('{"servers": /* a\nb */ {\n  "files": oops}}', "line 3, column 12"),
        ('{// here, a "quote"\n"servers": x}', "line 2, column 12"),
        ('{"servers": {}} trailing', "line 1, column 17"),
        ('{"servers": {"a": "unclosed // string\n}}', "line 1, column 38"),
        ('{"servers": {},\n  /* unclosed }', "line 2, column 3: the comment is not closed"),
        ("/*/", "line 1, column 1: the comment is not closed"),
        ("{,}", "line 1, column 2"),
        ("[,]", "line 1, column 2"),
        ("[1,,]", "line 1, column 4"),
        ('{"a":,}', "line 1, column 6"),
        ("[1],", "line 1, column 4"),
        (",", "line 1, column 1"),
        ("[1 / 2]", "line 1, column 4"),
        ("[1]]", "line 1, column 4"),
    ],
)
def test_a_syntax_error_names_line_and_column(text: str, place: str) -> None:
    assert refusal(text).startswith(place)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# servers\nmcpServers:\n  files:\n    command: npx\n", "line 1, column 1: this looks like YAML"),
        ("---\nservers: {}\n", "line 1, column 1: this looks like YAML, which is not read here: write it as JSON"),
        ("- name: files\n  command: npx\n", "line 1, column 1: this looks like YAML"),
        ('[servers.files]\ncommand = "npx"\n', "line 1, column 2: this looks like TOML: give the file a name"),
        ('{"mcpServer": {"a": {"command": "x"}}}', "mcpServer is an unknown field, did you mean 'mcpServers'?"),
        ('{"servers": {"a": {"comand": "x"}}}', "server 'a': comand: there is no such field, did you mean 'command'?"),
        ('{"servers": {"a": {"type": "stdio", "Comand": "x"}}}', "command: missing, or misspelt as 'Comand'"),
        (
            '{"servers": {"a": {"type": "stdio", "server_parameters": {"cmd": "x", "commmand": "y"}}}}',
            "server 'a': server_parameters.command: missing, or misspelt as 'commmand'",
        ),
        ("[NaN]", "not JSON: NaN is not a number"),
        ("[-Infinity]", "not JSON: -Infinity is not a number"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "9" * 5000 + "]", "a number has too many digits"),
        ('{"servers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "the name 'a' is there twice, keep one"),
        ('[{"name": "a", "command": "x"}, {"name": "a", "command": "y"}]', "server 'a' is there twice"),
        ('{"servers": {"a": {"command": "x"}}, "mcpServers": {"a": {"command": "x"}}}', "server 'a' is there twice"),
        ('{"inputs": [{"type": "promptString", "id": "k"}, {"type": "promptString", "id": "k"}]}', "input 'k'"),
        *((text, 'must hold "servers" or "mcpServers"') for text in ("5", '"servers"', "{}", '{"server": {"a": {}}}')),
        ('{"servers": "files"}', "servers: must be an object of configurations by name, or a list of them"),
        ('{"mcpServers": null}', "mcpServers: must be an object of configurations by name, or a list of them"),
        ('{"servers": {}, "inputs": {"token": {}}}', "inputs: must be a list"),
        ('{"servers": [{"command": "x"}]}', "servers.0: server: name: missing"),
        ('[{"name": "a", "command": "x"}, 5]', "1: server: must be an object"),
        ('{"inputs": [{"type": "promptString"}]}', "inputs.0: input: id: missing"),
        ('{"command": "npx"}', "server: name: missing"),
        ('{"servers": {" a": {"command": "npx"}}}', "server ' a': name: must not begin or end with white space"),
    ],
    ids=lambda text: text[:60],
)
def test_a_wrong_content_is_named(text: str, said: str) -> None:
    assert said in refusal(text)


def test_every_server_and_input_that_is_wrong_is_named_at_once() -> None:
    said = refusal('{"servers": {"a": {"command": 1}, "b": {"url": "x"}, "c": {"command": "fine"}}, "inputs": [{}]}')
    assert said.split("; ") == [
        "server 'a': command: must be a string",
        "server 'b': url: must be an http or https URL, such as \"https://example.com/mcp\"",
        "inputs.0: input: type: must be one of promptString, pickString, command",
    ]


@pytest.mark.parametrize(
    "text", ["servers = ", "[servers", 'a = "x"\na = "y"', "a = 2026-99-99", "a = " + "[" * 100_000]
)
def test_toml_that_is_none_is_refused_and_so_is_what_json_does_not_have(text: str) -> None:
    assert refusal(text, "toml").startswith(("not TOML: ", "nested too deeply"))
    assert "vrl: must be a string" in refusal('[servers.files]\ncommand = "npx"\nvrl = 2026-01-01', "toml")


# JSON with comments and trailing commas

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters() | st.sampled_from('"\\/*,]}[{:\n\r\t ')),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='ab"\\/*,]}:\n'), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.data(), st.booleans(), st.sampled_from([None, 1]))
def test_comments_and_trailing_commas_change_nothing(
    value: Any, data: st.DataObject, ascii_only: bool, indent: int | None
) -> None:
    assert loads(decorated(value, data.draw)) == value
    assert loads(json.dumps(value, ensure_ascii=ascii_only, indent=indent)) == value


def attempt(read: Callable[[str], Any], text: str) -> tuple[Any, str]:
    try:
        return read(text), ""
    except (ValueError, RecursionError) as error:
        return None, str(error)


@given(st.text(alphabet='{}[]",:/*\\ \n1ae') | st.text())
def test_json_is_read_as_json_and_any_other_text_is_read_or_refused(text: str) -> None:
    plain, fault = attempt(json.loads, text)
    value, refused = attempt(loads, text)
    if not fault and "twice" not in refused and "is not a number" not in refused:
        assert (value, refused) == (plain, "")


@given(json_values, st.data())
def test_a_fault_is_found_in_its_line_and_column_whatever_comments_precede_it(value: Any, data: st.DataObject) -> None:
    before = f"[{decorated(value, data.draw)},{data.draw(gaps)}"
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    with pytest.raises(ConfigError) as caught:
        loads(f"{before}?]")
    assert f"line {line}, column {column}:" in caught.value.message


def test_a_large_file_is_read_in_linear_time() -> None:
    text = "[" + '"a,]", /* b */ {"c": [1,],}, // d\n' * 20_000 + "]"
    assert len(loads(text)) == 40_000
    assert "not closed" in refusal("[" + "/*" * 100_000)
