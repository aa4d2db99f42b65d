"""Who keeps a tool's name when another server offers one of the same name."""

from __future__ import annotations

from a2c_smcp.computer.tools.names import Precedence


def order(precedence: Precedence, *tools: tuple[str, str]) -> list[tuple[str, str]]:
    return sorted(tools, key=lambda each: precedence.of(*each))


def test_at_start_the_order_of_the_configuration_counts_and_not_who_is_ready_first() -> None:
    precedence = Precedence()
    precedence.configured(["slow", "quick"])
    precedence.listed("quick", ["send"])
    precedence.listed("slow", ["send"])
    assert order(precedence, ("quick", "send"), ("slow", "send")) == [("slow", "send"), ("quick", "send")]


def test_a_server_whose_first_start_failed_comes_behind_those_that_are_there() -> None:
    precedence = Precedence()
    precedence.configured(["broken", "quick"])
    precedence.listed("quick", ["send"])
    precedence.failed("broken")
    precedence.listed("broken", ["send"])
    assert order(precedence, ("broken", "send"), ("quick", "send")) == [("quick", "send"), ("broken", "send")]


def test_a_tool_that_is_added_later_comes_behind_those_that_are_there() -> None:
    precedence = Precedence()
    precedence.configured(["first", "second"])
    precedence.listed("first", ["read"])
    precedence.listed("second", ["send"])
    precedence.listed("first", ["read", "send"])
    assert order(precedence, ("first", "send"), ("second", "send")) == [("second", "send"), ("first", "send")]


def test_a_server_that_is_configured_later_comes_behind_wherever_it_stands_in_the_file() -> None:
    precedence = Precedence()
    precedence.configured(["old"])
    precedence.listed("old", ["send"])
    precedence.configured(["new", "old"])
    precedence.listed("new", ["send"])
    assert order(precedence, ("new", "send"), ("old", "send")) == [("old", "send"), ("new", "send")]


def test_a_restart_changes_nothing_and_a_removal_gives_up_the_place() -> None:
    precedence = Precedence()
    precedence.configured(["a", "b"])
    precedence.listed("a", ["send"])
    precedence.listed("b", ["send"])
    precedence.failed("a")
    precedence.listed("a", ["send"])
    assert order(precedence, ("b", "send"), ("a", "send")) == [("a", "send"), ("b", "send")]
    precedence.configured(["b"])
    precedence.configured(["a", "b"])
    precedence.listed("a", ["send"])
    assert order(precedence, ("b", "send"), ("a", "send")) == [("b", "send"), ("a", "send")]
