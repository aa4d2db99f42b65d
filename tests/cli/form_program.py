"""Asks one question after the other as a form on the terminal: `form_program.py FILE QUESTION…`, as JSON.

The answers go into the file, one line each. SIGUSR1 withdraws the open question, SIGUSR2 makes something else speak.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from a2c_smcp.cli.form import TerminalForm
from a2c_smcp.cli.prompt.prompt import answer_reader
from a2c_smcp.cli.terminal import Conversations, Terminal
from a2c_smcp.protocol.questions import Answer, Question

OPENED: list[str] = []


async def open_page(url: str) -> bool:
    OPENED.append(url)
    return "closed" not in url


async def main(path: Path, questions: list[Question]) -> None:
    terminal = Terminal()
    talks, loop = Conversations(terminal, answer_reader()), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR2, lambda: terminal.show("something else has happened"))

    open_ones: list[asyncio.Task[Answer]] = []
    loop.add_signal_handler(signal.SIGUSR1, lambda: open_ones[0].cancel())

    async def ask(question: Question) -> None:
        form = TerminalForm(
            question, terminal, who="tables", goes_to="Your answer goes to tables.", open_page=open_page
        )
        answering = asyncio.create_task(talks.converse(form.fill))
        open_ones.append(answering)
        try:
            answer = await answering
            found = {**answer.to_mcp(), **({"opened": OPENED[-1]} if OPENED else {})}
        except asyncio.CancelledError:
            found = {"withdrawn": True}
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")

    await asyncio.gather(*map(ask, questions))
    terminal.show("end of questions")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), [Question(**json.loads(each)) for each in sys.argv[2:]]))
