"""Who keeps a tool's name when another server offers one of the same name."""

from __future__ import annotations

from a2c_smcp.computer.tools.names import NameOrder


def order(names: NameOrder, *tools: tuple[str, str]) -> list[tuple[str, str]]:
    return sorted(tools, key=lambda each: names.of(*each))


def test_at_start_the_order_of_the_configuration_counts_and_not_who_is_ready_first() -> None:
    names = NameOrder()
    names.configured(["slow", "quick"])
    names.listed("quick", ["send"])
    names.listed("slow", ["send"])
    assert order(names, ("quick", "send"), ("slow", "send")) == [("slow", "send"), ("quick", "send")]


def test_a_server_whose_first_start_failed_comes_behind_those_that_are_there() -> None:
    names = NameOrder()
    names.configured(["broken", "quick"])
    names.listed("quick", ["send"])
    names.failed("broken")
    names.listed("broken", ["send"])
    assert order(names, ("broken", "send"), ("quick", "send")) == [("quick", "send"), ("broken", "send")]


def test_a_tool_that_is_added_later_comes_behind_those_that_are_there() -> None:
    names = NameOrder()
    names.configured(["first", "second"])
    names.listed("first", ["read"])
    names.listed("second", ["send"])
    names.listed("first", ["read", "send"])
    assert order(names, ("first", "send"), ("second", "send")) == [("second", "send"), ("first", "send")]


def test_a_server_that_is_configured_later_comes_behind_wherever_it_stands_in_the_file() -> None:
    names = NameOrder()
    names.configured(["old"])
    names.listed("old", ["send"])
    names.configured(["new", "old"])
    names.listed("new", ["send"])
    assert order(names, ("new", "send"), ("old", "send")) == [("old", "send"), ("new", "send")]


def test_a_restart_changes_nothing_and_a_removal_gives_up_the_place() -> None:
    names = NameOrder()
    names.configured(["a", "b"])
    names.listed("a", ["send"])
    names.listed("b", ["send"])
    names.failed("a")
    names.listed("a", ["send"])
    assert order(names, ("b", "send"), ("a", "send")) == [("a", "send"), ("b", "send")]
    names.configured(["b"])
    names.configured(["a", "b"])
    names.listed("a", ["send"])
    assert order(names, ("b", "send"), ("a", "send")) == [("b", "send"), ("a", "send")]
