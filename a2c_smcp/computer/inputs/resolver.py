"""The values of inputs: from which sources, in which order, and who is notified when one changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from a2c_smcp.computer.asking import ask
from a2c_smcp.computer.inputs.definitions import (
    CommandFailed,
    Input,
    InputProblem,
    InvalidInput,
    MissingInputs,
    UnknownInput,
    advice,
    check,
    default_of,
    is_ours,
    is_secret,
    published_variable_of,
    variable_of,
)
from a2c_smcp.computer.inputs.sources import Keychain, argv_of, run
from a2c_smcp.mcp_host.config.servers import CommandInput
from a2c_smcp.private_files import PrivateJSONFile

__all__ = ["Approve", "InputState", "Inputs", "Prompt", "Resolved", "Storage"]

Prompt: TypeAlias = Callable[[Input], Awaitable[str | None] | str | None]
"""Asks the owner for a value. Returns `None` if there is no answer."""
Approve: TypeAlias = Callable[[CommandInput, tuple[str, ...]], Awaitable[bool] | bool]
"""Shows a command to the owner. Only `True` lets it run."""
Storage: TypeAlias = Literal["memory", "file", "keyring"]
Source: TypeAlias = Literal["explicit", "environment", "keyring", "answer", "command", "default"]


@dataclass(frozen=True)
class Resolved:
    """The values of the inputs of a server, and those among them that are secrets."""

    values: Mapping[str, Any] = field(repr=False)
    secrets: frozenset[str] = field(repr=False)


@dataclass(frozen=True)
class InputState:
    """An input as it may be shown: `value` is `None` for a secret. The keyring is not read for this."""

    definition: Input = field(repr=False)
    id: str
    is_secret: bool
    source: Source | None
    value: Any


@dataclass(frozen=True)
class _Value:
    value: Any = field(repr=False)
    source: Source


class Inputs:
    """The values of `${input:id}`.

    The first source that has a value counts: explicit, the environment, the keyring, the owner (for a command: its
    output), the default. Answers of the owner are kept while the process lives; commands run each time, since their
    output may expire. Explicit values come from `values`, from the file `store` and from `set`; `values` win over the
    file. Secrets are never written into the file.
    """

    def __init__(
        self,
        definitions: Iterable[Input] = (),
        *,
        values: Mapping[str, Any] | None = None,
        prompt: Prompt | None = None,
        approve: Approve | None = None,
        store: Path | str | None = None,
        environ: Mapping[str, str] = os.environ,
        keyring: bool = True,
    ) -> None:
        self._definitions = {each.id: each for each in definitions}
        self._prompt, self._approve, self._environ = prompt, approve, environ
        self._keychain = Keychain(enabled=keyring)
        self._store = PrivateJSONFile(Path(store)) if store is not None else None
        self._kept = self._store.load() if self._store else {}
        self._explicit = {**self._kept, **(values or {})}
        self._answers: dict[str, str] = {}
        self._approved: set[tuple[str, ...]] = set()
        self._listeners: list[Callable[[frozenset[str]], None]] = []
        self._asking, self._writing = asyncio.Lock(), asyncio.Lock()
        self._sources = (
            self._from_explicit,
            self._from_environment,
            self._from_keyring,
            self._from_owner,
            _from_default,
        )
        self._distrust_file()

    def define(self, definitions: Iterable[Input]) -> None:
        """Replace all definitions. Listeners are called with those that are new, gone or different."""
        before, after = self._definitions, {each.id: each for each in definitions}
        self._definitions = after
        self._distrust_file()
        self._notify(id_ for id_ in before.keys() | after.keys() if before.get(id_) != after.get(id_))

    def subscribe(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call the listener with the ids of changed inputs. Returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def resolve(self, ids: Iterable[str], *, server: str) -> Resolved:
        """The values of these inputs. Raises `UnknownInput`, or `MissingInputs` naming all without a usable value."""
        wanted = sorted(set(ids))
        if unknown := [id_ for id_ in wanted if id_ not in self._definitions]:
            raise UnknownInput(unknown, server)
        values: dict[str, Any] = {}
        secrets: set[str] = set()
        problems: dict[str, InputProblem] = {}
        for definition in [self._definitions[id_] for id_ in wanted]:
            try:
                found = await self._find(definition)
            except (_NotGiven, CommandFailed, InvalidInput) as problem:
                problems[definition.id] = advice(definition, problem)
                continue
            values[definition.id] = found.value
            if found.source == "keyring" or is_secret(definition):
                secrets.add(str(found.value))
        if problems:
            raise MissingInputs(problems, server)
        return Resolved(values, frozenset(secrets))

    async def set(self, id_: str, value: Any, *, keep: bool = False) -> Storage:
        """Set a value; with `keep`, also for later runs: a secret in the keyring, another value in the file.

        Returns where it is kept: in memory if nothing else is possible. Raises `UnknownInput`, `InvalidInput` or
        `PrivateFileUnusable`.
        """
        definition = self._defined(id_)
        check(definition, value)
        async with self._writing:
            is_new = self._explicit.get(id_, self._answers.get(id_)) != value
            self._explicit[id_] = value
            self._answers.pop(id_, None)
            place = await self._keep(id_, value) if keep else "memory"
        if is_new:
            self._notify([id_])
        return place

    async def clear(self, id_: str) -> bool:
        """Forget a value wherever it is kept. Returns whether there was one. Raises `UnknownInput`."""
        self._defined(id_)
        async with self._writing:
            held = [values.pop(id_, None) is not None for values in (self._explicit, self._answers)]
            if self._kept.pop(id_, None) is not None:
                held.append(True)
                await self._save()
            held.append(await self._keychain.delete(id_))
        if any(held):
            self._notify([id_])
        return any(held)

    def list(self) -> list[InputState]:
        """Every input, with the value that is known without asking the owner or the keyring, unless it is a secret."""
        return [self._state(definition) for definition in self._definitions.values()]

    def _state(self, definition: Input) -> InputState:
        known = (self._from_explicit, self._from_environment, self._from_answers, _from_default)
        found = next((found for source in known if (found := source(definition))), None)
        is_secret = self._hides(definition.id)
        if found is None:
            return InputState(definition, definition.id, is_secret, None, None)
        return InputState(definition, definition.id, is_secret, found.source, None if is_secret else found.value)

    async def _find(self, definition: Input) -> _Value:
        for source in self._sources:
            found = source(definition)
            found = await found if isinstance(found, Awaitable) else found
            if found is not None:
                check(definition, found.value, f"its value ({found.source}) ")
                return found
        raise _NotGiven

    def _from_explicit(self, definition: Input) -> _Value | None:
        value = self._explicit.get(definition.id)
        return _Value(value, "explicit") if value is not None else None

    def _from_environment(self, definition: Input) -> _Value | None:
        value = self._environ.get(variable_of(definition.id)) or self._from_published_variable(definition.id)
        return _Value(value, "environment") if value else None

    def _from_published_variable(self, id_: str) -> str | None:
        """Of the variable that the published package reads, unless it stands for several inputs."""
        variable = published_variable_of(id_)
        is_shared = sum(published_variable_of(each) == variable for each in self._definitions) > 1
        return None if is_shared else self._environ.get(variable)

    def _from_answers(self, definition: Input) -> _Value | None:
        value = self._answers.get(definition.id)
        return _Value(value, "answer") if value is not None else None

    async def _from_keyring(self, definition: Input) -> _Value | None:
        value = await self._keychain.get(definition.id)
        return _Value(value, "keyring") if value is not None else None

    async def _from_owner(self, definition: Input) -> _Value | None:
        if isinstance(definition, CommandInput):
            return _Value(await self._run(definition), "command")
        async with self._asking:  # one question at a time, and none twice
            if (answered := self._from_answers(definition)) or self._prompt is None:
                return answered
            answer = await ask(self._prompt, definition)
            if answer is None:
                return None
            check(definition, answer, "the answer ")
            self._answers[definition.id] = answer
        return _Value(answer, "answer")

    async def _run(self, definition: CommandInput) -> str:
        argv = argv_of(definition.command, definition.args)
        async with self._asking:
            if argv not in self._approved:
                if self._approve is None:
                    raise CommandFailed("its command must be approved first, and there is nobody to ask")
                if await ask(self._approve, definition, argv) is not True:
                    raise CommandFailed("its command was not approved")
                self._approved.add(argv)
        return await run(argv, environ={name: value for name, value in os.environ.items() if not is_ours(name)})

    async def _keep(self, id_: str, value: Any) -> Storage:
        if self._hides(id_):
            return "keyring" if await self._keychain.set(id_, str(value)) else "memory"
        if self._store is None:
            return "memory"
        self._kept[id_] = value
        await self._save()
        return "file"

    async def _save(self) -> None:
        if self._store:
            await asyncio.to_thread(self._store.save, dict(self._kept))

    def _hides(self, id_: str) -> bool:
        return id_ in self._definitions and is_secret(self._definitions[id_])

    def _distrust_file(self) -> None:
        """Do not use a value in the file if its input has become a secret: it should not be in a file."""
        for id_ in [id_ for id_ in self._kept if self._hides(id_)]:
            if self._explicit.get(id_) == self._kept.pop(id_):
                self._explicit.pop(id_, None)

    def _defined(self, id_: str) -> Input:
        if id_ not in self._definitions:
            raise UnknownInput([id_])
        return self._definitions[id_]

    def _notify(self, ids: Iterable[str]) -> None:
        if changed := frozenset(ids):
            for listener in tuple(self._listeners):
                listener(changed)


class _NotGiven(Exception):
    def __str__(self) -> str:
        return "it has no value"


def _from_default(definition: Input) -> _Value | None:
    default = default_of(definition)
    return _Value(default, "default") if default is not None else None
