"""What can be wrong with inputs. The sentences name inputs and servers, never a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["CommandFailed", "InputError", "InvalidInput", "MissingInputs", "StoreUnreadable", "UnknownInput"]


class InputError(Exception):
    """An input that cannot be used."""


class UnknownInput(InputError):
    """A configuration mentions inputs that nobody has defined."""

    def __init__(self, ids: Iterable[str], server: str | None = None) -> None:
        self.ids, self.server = tuple(ids), server
        names = ", ".join(repr(each) for each in self.ids)
        who = f"server {server!r} uses" if server is not None else "there is no definition of"
        super().__init__(f"{who} {names}: define it under `inputs`, or correct the placeholder")


class MissingInputs(InputError):
    """Some inputs of a server have no usable value: all of them, each with what is wrong and what to do."""

    def __init__(self, problems: Mapping[str, str], server: str) -> None:
        self.ids, self.server, self.problems = tuple(problems), server, dict(problems)
        lines = "".join(f"\n  {id_}: {problem}" for id_, problem in problems.items())
        super().__init__(f"server {server!r} cannot start without these inputs:{lines}")


class InvalidInput(InputError):
    """A value that its input does not take."""

    def __init__(self, id_: str, fault: str) -> None:
        self.id, self.fault = id_, fault
        super().__init__(f"input {id_!r}: {fault}")


class CommandFailed(InputError):
    """The command of an input gave no value."""


class StoreUnreadable(InputError):
    """The file of kept values cannot be used."""
