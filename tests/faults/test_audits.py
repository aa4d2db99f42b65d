"""What a fault run says of audit files that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.audit.file import AuditFile
from tests.faults.audits import find_audit_faults
from tests.faults.calls import ANSWERED
from tests.faults.made_up import PAIR, call, entry

OK = {"event": "call", "req_id": call().id, "outcome": "ok"}
REFUSED = {**OK, "outcome": "unavailable", "code": 503}


def written(path: Path, *processes: list[dict[str, Any]]) -> Path:
    for lines in processes:
        file = AuditFile(path)
        for line in lines:
            file.write(line)
        file.close()
    return path


def kinds(folder: Path, server: list[list[dict[str, Any]]], computer: list[dict[str, Any]], code: int) -> list[str]:
    paths = [written(folder / "node1.jsonl", *server)], {PAIR: written(folder / "computer.jsonl", computer)}
    wrong, lines = find_audit_faults(*paths, [entry(code)])
    assert lines == sum(map(len, server)) + len(computer)
    return [each.partition(":")[0] for each in wrong]


@pytest.mark.parametrize("server", [[[OK]], [[REFUSED, REFUSED, OK]], [[OK], [OK]]])
def test_each_process_has_one_line_of_a_result(tmp_path: Path, server: list[list[dict[str, Any]]]) -> None:
    assert kinds(tmp_path, server, [OK], ANSWERED) == []


def test_lines_that_are_missing_or_doubled_are_found(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        folder.mkdir(0o700)
    assert kinds(folders[0], [[OK, OK]], [OK], ANSWERED) == ["audited twice"]
    assert kinds(folders[1], [[]], [OK], ANSWERED) == ["not audited"]
    assert kinds(folders[2], [[OK]], [], ANSWERED) == ["not audited"]
    assert kinds(folders[3], [[]], [], 404) == ["not audited"]


def test_a_changed_file_is_found(tmp_path: Path) -> None:
    path = written(tmp_path / "node1.jsonl", [OK])
    path.write_bytes(path.read_bytes().replace(b'"ok"', b'"no"'))
    wrong, _ = find_audit_faults([path], {}, [])
    assert [each.partition(":")[0] for each in wrong] == ["audit"]
