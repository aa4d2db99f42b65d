"""The table of requests: what no single row can say."""

from __future__ import annotations

from a2c_smcp.protocol.operations import MCP_LISTS, MCP_OPERATIONS, Rule
from reference.features import FEATURES


def test_a_field_has_the_same_rule_in_all_requests() -> None:
    rules: dict[str, Rule] = {}
    for operation in MCP_OPERATIONS:
        for field, rule in operation.rules.items():
            assert rules.setdefault(field, rule) is rule, f"{operation.event}: {field} has another rule elsewhere"


def test_each_request_to_mcp_servers_is_in_the_table_of_features() -> None:
    listed = {event for feature in FEATURES for event in feature.events}
    missing = [row.event for row in (*MCP_OPERATIONS, *MCP_LISTS) if row.event not in listed]
    assert not missing, "add a line to reference/features.py"
