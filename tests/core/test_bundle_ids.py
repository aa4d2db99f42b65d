"""Bundle ids, by the vectors that the published 0.4.2 gave."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.protocol.names import BundleIds, bundle_id_of, fault_in_bundle_id

NPX = {"command": "npx"}
HTTP = {"url": "https://h.example/mcp"}


def _server(name: str, kind: str = "stdio", parameters: dict[str, Any] = NPX, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "server_parameters": parameters, **more}


@pytest.mark.parametrize(
    ("name", "bundle_id"),
    [
        ("skill srv!", "skill_srv"),
        ("My.Server", "My_Server"),
        ("a__b", "a_b"),
        ("_lead-", "lead"),
        ("a--b", "a--b"),
        ("MyServer", "MyServer"),
        ("数据 tools", "tools"),
    ],
)
def test_it_is_derived_from_the_name_whatever_the_connection_is(name: str, bundle_id: str) -> None:
    assert bundle_id_of(_server(name)) == bundle_id
    assert bundle_id_of(_server(name, "sse", HTTP)) == bundle_id


@pytest.mark.parametrize(
    ("kind", "parameters", "bundle_id"),
    [
        ("stdio", NPX, "bundle_ead53dec69b086cc"),
        ("stdio", {**NPX, "args": [], "env": None, "cwd": "/anywhere"}, "bundle_ead53dec69b086cc"),
        ("stdio", {**NPX, "args": ["-y", "x"]}, "bundle_bfe19fbc5d95038d"),
        ("stdio", {**NPX, "args": ["-y", "x"], "env": {"B": "2", "A": "${input:k}"}}, "bundle_22683c40555a8561"),
        ("streamable", HTTP, "bundle_d332ac141405425b"),
        ("streamable", {**HTTP, "headers": {"Authorization": "Bearer ${input:t}"}}, "bundle_fa2826683ca5a4f9"),
        ("sse", {"url": "https://h.example/sse"}, "bundle_20a676fcfeeb09e4"),
    ],
)
def test_it_is_derived_from_the_connection_if_nothing_of_the_name_is_left(
    kind: str, parameters: dict[str, Any], bundle_id: str
) -> None:
    assert bundle_id_of(_server("数据", kind, parameters)) == bundle_id
    assert bundle_id_of(_server("...", kind, parameters)) == bundle_id


def test_an_explicit_one_wins() -> None:
    assert bundle_id_of(_server("files", bundle_id="my-files")) == "my-files"
    assert bundle_id_of(_server("files", bundle_id=None)) == "files"


def test_the_grammar_of_bundle_ids() -> None:
    assert [fault_in_bundle_id(each) for each in ("a", "A_b-9", "--", "_a_", "x" * 128)] == [None] * 5
    assert all(fault_in_bundle_id(each) for each in ("", "a__b", "a.b", "a b", "数据", "a\n", "x" * 129))


def _ids(*servers: tuple[str, str | None]) -> BundleIds:
    ids = BundleIds()
    for name, explicit in servers:
        ids.put(_server(name, bundle_id=explicit))
    return ids


def test_of_two_servers_that_want_one_id_the_first_has_it_and_the_owner_is_warned() -> None:
    ids = _ids(("files!", None), ("files?", None), ("files-2", None), ("other", "files"))
    assert ids.by_name == {"files!": "files", "files?": "files-3", "files-2": "files-2", "other": "files-4"}
    assert [each.partition(":")[0] for each in ids.warnings] == ["server 'files?'", "server 'other'"]
    assert "'files-3'" in ids.warnings[0]
    ids.remove("files!")
    assert ids.by_name == {"files?": "files", "files-2": "files-2", "other": "files-3"}


def test_a_server_is_found_by_its_name_and_by_its_bundle_id() -> None:
    ids = _ids(("skill srv!", None), ("数据", None))
    assert [ids.server(each) for each in ("skill srv!", "skill_srv", "数据", "bundle_ead53dec69b086cc", "skill")] == [
        "skill srv!",
        "skill srv!",
        "数据",
        "数据",
        None,
    ]
    assert (ids.of("skill srv!"), ids.of("python")) == ("skill_srv", "python")


def test_a_bundle_id_is_never_the_name_of_another_server() -> None:
    ids = _ids(("files!", None), ("files", "other"))
    assert ids.by_name == {"files!": "files-2", "files": "other"}
    assert ids.server("files") == "files"
