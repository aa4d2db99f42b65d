"""Facts for the owner beside the arguments of a call: what its tool does, and what is unusual about it.

What a tool does is what its MCP server says, which may be a lie: it is marked as claimed, unless the owner has said so
or trusts the server (`servers` of the policy). It decides nothing.

`CallMemory` knows which agents have called which tools, and what the owner has said yes to: folders of paths, hosts of
URLs, short words. It holds digests of masked values, none of arguments that have the name of a secret. For lack of room
the oldest are forgotten, and look new again: an agent that floods it makes calls look more unusual, never less.

Agents are those that grants are for: by name, MCP client and device. A Server of ours also tells the seat, and a call
from another seat than before says so: the agent was started again, or it is another program under its name.

Paths are compared as they are written, with percent signs decoded, and with `\\` for `/`: what its server makes of a
path is not known. The disk is looked at only inside of the folders of the server: a path that an agent has chosen
might be on a slow disk, or on another machine that would learn of it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.rules import AccessPolicy, ServerStatement, names_match
from a2c_smcp.computer.secrets.rules import is_secret_name
from a2c_smcp.mcp_host.config.sandbox import ANY, SandboxSettings
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, StdioConfig
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.escaping import leaves, web_host

EFFECTS = {
    "reads": ("○", "reads only"),
    "changes": ("±", "changes something"),
    "destroys": ("✕", "destroys"),
    "unknown": ("?", "does not say what it does"),
    "repeats": ("↻", "may be repeated"),
    "internet": ("↗", "reaches the internet"),
}
"""The sign and the English words of each effect."""
CLAIMED = "claimed by the server"
UNUSUAL = {
    "new_agent": "This agent has called nothing here before.",
    "new_seat": "The agent was started again, or another program has its name.",
    "first_use": "This agent has not used this tool before.",
    "folder": "{argument}: you have not allowed this folder before: {value}",
    "host": "{argument}: you have not allowed this host before: {value}",
    "word": "{argument}: you have not allowed this value before: {value}",
    "outside": "{argument}: outside of the folders of its server: {value}",
    "many": "It has more that is unusual, or more values than are compared.",
}
"""English sentences of what is unusual."""

_CLAIMS = (
    ("destroys", "destructiveHint", True),
    ("reads", "readOnlyHint", True),
    ("changes", "readOnlyHint", False),
    ("changes", "destructiveHint", False),
)
_MORE = (("repeats", "idempotentHint"), ("internet", "openWorldHint"))
_MOST_AGENTS, _MOST_FACTS = 100, 1000
_MOST_VALUES, _MOST_UNUSUAL = 100, 8
_FREE_TEXT = 4
"""An argument with so many words that were allowed is free text, of which no word is unusual."""
_LONGEST_TEXT, _LONGEST_PATH = 4096, 1024
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://\S+")
_FILE_URL = re.compile(r"file:(//[^/]*)?", re.IGNORECASE)
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_PATH = re.compile(r"[~/\\]|[A-Za-z]:[\\/]|[^\s/\\]+[/\\]|\.\.?$|.*(?:^|[/\\])\.\.(?:[/\\]|$)")
_FOLDER = re.compile(r"~|\.\.?$|.*[/\\]")
_WORD = re.compile(r"[\w.:-]{1,24}")
_INDEX = re.compile(r"\[\d+\]")


class Effect(NamedTuple):
    """An effect of a tool, a key of `EFFECTS`. `is_claimed`: only its MCP server says so."""

    kind: str
    is_claimed: bool = False


class Unusual(NamedTuple):
    """An unusual fact of a call, a key of `UNUSUAL`; with the argument and the value that it is about, masked."""

    kind: str
    argument: str = ""
    value: str = ""


class Risk(NamedTuple):
    """The facts that a person decides by, beside the arguments. The description of the tool is masked."""

    description: str = ""
    effects: tuple[Effect, ...] = ()
    unusual: tuple[Unusual, ...] = ()


def effect_words(effects: Iterable[Effect]) -> str:
    """Return effects as a list in English, without signs."""
    return ", ".join(f"{EFFECTS[kind][1]}{f' ({CLAIMED})' if is_claimed else ''}" for kind, is_claimed in effects)


def effects_of(policy: AccessPolicy | None, route: ToolRoute) -> tuple[Effect, ...]:
    """Return what the tool does. Where its server contradicts itself, the worse counts."""
    said = (policy or AccessPolicy()).servers.get(route.server) or ServerStatement()
    owners = {"destroys": said.destructive, "reads": said.read_only}
    own = [Effect(kind) for kind, names in owners.items() if names is not None and names_match(names, route.tool)]
    is_claimed = not said.trust_hints
    claims = [Effect(kind, is_claimed) for kind, hint, value in _CLAIMS if route.hints.get(hint) is value]
    more = [Effect(kind, is_claimed) for kind, hint in _MORE if route.hints.get(hint) is True]
    return ([*own, *claims, Effect("unknown")][0], *more)


Who: TypeAlias = tuple[str, ...]
"""An agent as grants know it: its name, its device and its MCP client."""


def _digest(*parts: str) -> str:
    return hashlib.sha256(dumps(parts).encode(errors="surrogatepass")).hexdigest()[:32]


class CallMemory:
    """The tools that agents have called, and what the owner has allowed them. Of each agent, the digests of facts."""

    def __init__(self) -> None:
        self._agents: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._noted: set[tuple[Who, str, str, str]] = set()

    def load(self, kept: object) -> None:
        """Replace all by what `kept` has; anything else in it is ignored."""
        self._agents.clear()
        self._noted.clear()
        for agent, facts in kept.items() if isinstance(kept, dict) else ():
            if isinstance(facts, list):
                self._agents[agent] = OrderedDict.fromkeys(fact for fact in facts if isinstance(fact, str))

    def written(self) -> dict[str, list[str]]:
        return {agent: [*facts] for agent, facts in self._agents.items()}

    def note(self, who: Who, seat: str, server: str, tool: str) -> None:
        """The agent calls the tool."""
        call = (who, seat, server, tool)
        if call in self._noted:
            return
        if len(self._noted) >= _MOST_FACTS:
            self._noted.clear()
        self._noted.add(call)
        self._learn(_digest(*who), _digest("seat", seat), _digest("tool", server, tool))

    def allow(self, who: Who, server: str, tool: str, arguments: Mapping[str, Any]) -> None:
        """The owner has said yes to a call with these arguments, which are masked."""
        agent = _digest(*who)
        for kind, argument, value in _values(arguments):
            fact, known = _digest(kind, server, tool, argument, value), self._agents.get(agent, OrderedDict())
            if kind == "word" and fact not in known:
                counted = (_digest("words", server, tool, argument, str(count)) for count in range(_FREE_TEXT))
                self._learn(agent, next((count for count in counted if count not in known), fact))
            self._learn(agent, fact)

    def unusual(self, who: Who, seat: str, server: str, tool: str, arguments: Mapping[str, Any]) -> Iterator[Unusual]:
        """Yield what is unusual about a call with these arguments, which are masked."""
        known = self._agents.get(_digest(*who))
        if known is None:
            yield Unusual("new_agent")
            return
        if seat and _digest("seat", seat) not in known:
            yield Unusual("new_seat")
        if _digest("tool", server, tool) not in known:
            yield Unusual("first_use")
            return
        for kind, argument, value in _values(arguments):
            is_free = kind == "word" and _digest("words", server, tool, argument, str(_FREE_TEXT - 1)) in known
            if not is_free and _digest(kind, server, tool, argument, value) not in known:
                yield Unusual(kind, argument, value)

    def _learn(self, agent: str, *facts: str) -> None:
        known = self._agents.setdefault(agent, OrderedDict())
        for fact in facts:
            known[fact] = None
            known.move_to_end(fact)
        self._agents.move_to_end(agent)
        while len(known) > _MOST_FACTS:
            known.popitem(last=False)
        while len(self._agents) > _MOST_AGENTS:
            self._agents.popitem(last=False)


def _leaves_of(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the first values, one more than are compared; of arguments that are nested too deeply, as many of none."""
    try:
        return [*islice(leaves(dict(arguments)), _MOST_VALUES + 1)]
    except RecursionError:
        return [("", None)] * (_MOST_VALUES + 1)


def _texts(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values that are compared, each with its argument, whose place in a list does not count."""
    for path, value in _leaves_of(arguments)[:_MOST_VALUES]:
        yield _INDEX.sub("[]", path), value.strip() if isinstance(value, str) else value


def _values(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what is remembered: a kind, the argument, and the folder, the host or the word."""
    for argument, value in _texts(arguments):
        text = dumps(value) if isinstance(value, bool) else value
        if not isinstance(text, str) or is_secret_name(argument.replace("[]", "")):
            continue
        if path := _as_path(text):
            yield "folder", argument, os.path.dirname(os.path.normpath(path)) or "."  # noqa: PTH120
        elif _URL.match(text):
            yield "host", argument, web_host(text) or text.partition("?")[0][:_LONGEST_PATH]
        elif _WORD.fullmatch(text):
            yield "word", argument, text


def _as_path(text: str) -> str:
    """Return the path that a text is, or may be; empty if it is none."""
    if url := _FILE_URL.match(text):
        return unquote(text[url.end() :])
    if "\n" in text or len(text) > _LONGEST_TEXT or _URL.match(text):
        return ""
    return text if _PATH.match(text) or _PATH.match(unquote(text)) else ""


def folders_of(config: BaseServerConfig | None) -> list[str]:
    """Return the folders in the sandbox and in the command line of a server; empty if none are known."""
    if not isinstance(config, StdioConfig):
        return []
    parameters, sandbox = config.server_parameters, config.sandbox or SandboxSettings()
    if ANY in (sandbox.read, sandbox.write):
        return []
    words = [word.partition("=")[2] if word.startswith("-") else word for word in parameters.args]
    named = filter(_FOLDER.match, words)
    base = parameters.cwd or os.getcwd()  # noqa: PTH109
    paths = (os.path.join(base, _at_home(path)) for path in (*named, *sandbox.read, *sandbox.write))  # noqa: PTH118
    return [path for path in paths if os.path.isdir(path)]  # noqa: PTH112


def _at_home(path: str) -> str:
    return os.path.expanduser("~") + path[1:] if path == "~" or path.startswith("~/") else path  # noqa: PTH111


def paths_outside(arguments: Mapping[str, Any], config: BaseServerConfig | None) -> Iterator[Unusual]:
    """Yield the paths in arguments that lead out of the folders of a server, if they are known. It may block."""
    if folders := folders_of(config):
        real = [os.path.realpath(folder) for folder in folders]
        for argument, value in _texts(arguments):
            if isinstance(value, str) and (path := _as_path(value)) and _leads_out(path, folders, real):
                yield Unusual("outside", argument, value)


def _leads_out(path: str, folders: list[str], real: list[str]) -> bool:
    """True if a path, in any of the ways in which it may be read, is not in these folders. Links are followed."""
    forms = {path, unquote(path)}
    forms |= {form.replace("\\", "/") for form in forms}
    try:
        return any(_is_outside(form, folders, real) for form in forms)
    except ValueError:  # no file can have this name
        return True


def _is_outside(path: str, folders: list[str], real: list[str]) -> bool:
    path = _at_home(path)
    is_elsewhere = path.startswith("~") or (os.name != "nt" and _DRIVE.match(path))
    if is_elsewhere or len(path) > _LONGEST_PATH:
        return True
    candidates = (os.path.normpath(os.path.join(folder, path)) for folder in folders)  # noqa: PTH118
    inside = [candidate for candidate in candidates if _is_in(candidate, [*folders, *real])]
    return not inside or not all(_is_in(os.path.realpath(candidate), real) for candidate in inside)


def _is_in(path: str, folders: list[str]) -> bool:
    whole = PurePath(os.path.normcase(path))
    return any(whole.is_relative_to(os.path.normcase(os.path.normpath(folder))) for folder in folders)


def unusual_about(found: Iterable[Unusual], arguments: Mapping[str, Any]) -> tuple[Unusual, ...]:
    """Return what a person is shown of it, and whether that is not all."""
    shown = [*islice(found, _MOST_UNUSUAL + 1)]
    is_all = len(shown) <= _MOST_UNUSUAL and len(_leaves_of(arguments)) <= _MOST_VALUES
    return tuple(shown[:_MOST_UNUSUAL]) + (() if is_all else (Unusual("many"),))
