"""Questions to the owner on the terminal: values of inputs, and whether to run a command or apply a change."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from a2c_smcp.cli.conversation import Accept, Conversations, yes_or_no
from a2c_smcp.computer.inputs.definitions import Input, default_of, is_secret
from a2c_smcp.mcp_host.config.servers import CommandInput, PickStringInput

__all__ = ["Questions"]


class Questions(Conversations):
    """Asks the owner. Ctrl-D gives no answer (`None`), which is not an error."""

    async def value(self, definition: Input) -> str | None:
        """Ask for the value of an input, again if the answer is not valid."""
        text, default, hidden = definition.description or definition.id, default_of(definition), is_secret(definition)
        if isinstance(definition, PickStringInput):
            lines = [f"  {number}. {option.label}" for number, option in enumerate(definition.options, 1)]
            text = "\n".join([*lines, text])
        accept = _options(definition) if isinstance(definition, PickStringInput) else _something
        shown = f" [{default}]" if default is not None and not hidden else ""
        return await self.ask(f"{text}{shown}: ", lambda answer: accept(answer or default or ""), hidden=hidden)

    async def command(self, definition: CommandInput, argv: tuple[str, ...]) -> bool:
        """Ask whether the command of an input may run."""
        return bool(await self.ask(f"input {definition.id!r} runs {shlex.join(argv)}: let it? [y/N]: ", yes_or_no))

    async def consent(self, differences: Sequence[object]) -> bool:
        """Ask whether a change of the configuration files may be applied."""
        lines = [f"  {each}" for each in differences]
        text = "\n".join(["the configuration has changed, and this needs your yes:", *lines, "apply it? [y/N]: "])
        return bool(await self.ask(text, yes_or_no))


def _something(answer: str) -> str:
    if not answer:
        raise ValueError("an answer is needed; Ctrl-D gives none")
    return answer


def _options(definition: PickStringInput) -> Accept[str]:
    """An option may be chosen by its number, its label or its value."""
    known = {str(number): option.value for number, option in enumerate(definition.options, 1)}
    known |= {option.label: option.value for option in definition.options}
    known |= {option.value: option.value for option in definition.options}

    def accept(answer: str) -> str:
        if answer.strip() not in known:
            raise ValueError(f"choose a number from 1 to {len(definition.options)}")
        return known[answer.strip()]

    return accept
