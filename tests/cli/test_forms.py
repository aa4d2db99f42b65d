"""Questions of MCP servers as forms on a pseudo-terminal: what a person sees, types and corrects."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.computer.pseudo_terminal import OnTerminal, on_a_terminal
from tests.stage.prompt import CTRL_C, CTRL_D, ENTER, Dialogue

pytestmark = pytest.mark.covers("question-forms")

PEOPLE, AGREE = "People (whole number from 1 to 12) [2]:", "Agree? (y or n):"
SEND = "Send this? (y, n to decline, or 1 to 4 to correct one) [y]:"
PROGRAM = Path(__file__).with_name("form_program.py")
TITLES = {"people": "People", "place": "Place", "extras": "Extras", "note": "Note"}
FIELDS: dict[str, dict[str, Any]] = {
    "people": {"type": "integer", "description": "How many will come?", "minimum": 1, "maximum": 12, "default": 2},
    "place": {"oneOf": [{"const": "in", "title": "Inside"}, {"const": "out", "title": "On the terrace"}]},
    "extras": {"type": "array", "items": {"type": "string", "enum": ["candles", "music"]}, "default": ["candles"]},
    "note": {"maxLength": 20},
}
TABLE = {
    "type": "object",
    "properties": {name: {"type": "string", "title": TITLES[name], **field} for name, field in FIELDS.items()},
    "required": ["people", "place"],
}


class Asked(Dialogue):
    """The program with its questions, and the answers it got."""

    def __init__(self, program: OnTerminal, path: Path) -> None:
        super().__init__(program)
        self._path = path

    async def given(self) -> list[Any]:
        assert await self.exit_code() == 0, self.screen.text
        return [json.loads(line) for line in self._path.read_text().splitlines()]


Ask = Callable[..., Awaitable[Asked]]


@pytest.fixture
async def ask(tmp_path: Path) -> AsyncIterator[Ask]:
    async with AsyncExitStack() as stack:

        async def start(*questions: dict[str, Any], columns: int = 100) -> Asked:
            command = [sys.executable, str(PROGRAM), str(tmp_path / "answers"), *map(json.dumps, questions)]
            env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(PROGRAM.parents[2])}
            program = on_a_terminal(*command, env=env, lines=60, columns=columns)
            return Asked(await stack.enter_async_context(program), tmp_path / "answers")

        yield start


async def test_a_form_is_filled_in_with_defaults_choices_and_corrections(ask: Ask) -> None:
    asked = await ask({"message": "A table for tonight", "schema": TABLE})
    await asked.shows(
        "tables asks:\n│ A table for tonight\nYour answer goes to tables. Enter takes the value in [brackets]."
    )
    await asked.shows("│ How many will come?\n")
    await asked.answers(PEOPLE, "20", "it must be from 1 to 12")
    await asked.answers(PEOPLE, "", "│ 1. Inside\n│ 2. On the terrace\n")
    await asked.answers("Place (number of the choice):", "", "an answer is needed")
    await asked.answers("Place (number of the choice):", "2")
    await asked.answers("Extras (numbers, as in 1,2) [candles]:", "1,2")
    await asked.answers("Note (text, at most 20 characters, Enter leaves it out):", "")
    await asked.shows("│ 1. People: 2\n│ 2. Place: On the terrace\n│ 3. Extras: candles, music\n│ 4. Note:\n")
    await asked.answers(SEND, "9", "answer y, n, or a number from 1 to 4")
    await asked.answers(SEND, "1")
    await asked.answers(PEOPLE, "4", "│ 1. People: 4")
    await asked.answers(SEND, "")
    content = {"people": 4, "place": "out", "extras": ["candles", "music"]}
    assert await asked.given() == [{"action": "accept", "content": content}]


async def test_ctrl_d_declines_ctrl_c_leaves_it_unanswered_and_several_questions_queue(ask: Ask) -> None:
    one = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    asked = await ask(*({"message": f"Number {number}", "schema": one} for number in (1, 2, 3)))
    await asked.answers("n (whole number):", "7", "│ Number 2")
    await asked.asks("n (whole number):")
    assert "Number 3" not in asked.screen.text
    asked.types(CTRL_D)
    await asked.shows("declined")
    await asked.shows("│ Number 3")
    await asked.asks("n (whole number):")
    asked.types(CTRL_C)
    await asked.shows("left unanswered")
    assert await asked.given() == [
        {"action": "accept", "content": {"n": 7}},
        {"action": "decline"},
        {"action": "cancel"},
    ]


async def test_a_question_without_fields_is_a_yes_or_no(ask: Ask) -> None:
    asked = await ask({"message": "Delete all?", "schema": {"type": "object", "properties": {}}}, {"message": "Sure?"})
    await asked.answers(AGREE, "", "answer y or n")
    await asked.answers(AGREE, "y", "│ Sure?")
    await asked.answers(AGREE, "n")
    assert await asked.given() == [{"action": "accept", "content": {}}, {"action": "decline"}]


async def test_rules_that_a_field_does_not_show_are_checked_before_it_is_sent(ask: Ask) -> None:
    schema = {"type": "object", "properties": {"code": {"type": "string", "pattern": "^[A-Z]{3}$"}}}
    asked = await ask({"message": "Which?", "schema": schema})
    await asked.answers("code (text, Enter leaves it out):", "abc", 'code: value does not match "^[A-Z]{3}$"')
    await asked.answers("code (text, Enter leaves it out):", "ABC")
    assert await asked.given() == [{"action": "accept", "content": {"code": "ABC"}}]


async def test_what_is_typed_into_a_secret_field_is_not_shown(ask: Ask) -> None:
    schema = {"type": "object", "properties": {"user": {"type": "string"}, "password": {"type": "string"}}}
    asked = await ask({"message": "Who are you?", "schema": {**schema, "required": ["user", "password"]}})
    await asked.answers("user (text):", "ann")
    await asked.answers("password (text, not shown):", "hunter2-hunter2", "│ 2. password: (hidden)")
    await asked.answers("Send this? (y, n to decline, or 1 to 2 to correct one) [y]:", "")
    assert await asked.given() == [{"action": "accept", "content": {"user": "ann", "password": "hunter2-hunter2"}}]
    assert "hunter2" not in asked.screen.raw


async def test_text_of_a_server_cannot_draw_over_the_form_or_look_like_a_part_of_it(ask: Ask) -> None:
    bad = "\x1b[2J\x1b[H\u202eevil\x07\rAgree? (y or n): y\n\n\nSend this?\n" + "x" * 300 + "\n" * 100 + "z" * 9000
    properties = {
        "a\x1b[1A": {"type": "string", "title": "T\x1b]0;t\x07\nitle " + "t" * 500, "description": bad},
        "c": {"type": "string", "oneOf": [{"const": "1", "title": "\x1b[3A" + "c" * 900}]},
    }
    asked = await ask({"message": bad, "schema": {"type": "object", "properties": properties}}, columns=200)
    await asked.shows("more characters …] (text, Enter leaves it out):")
    assert not [each for each in ("\x1b[H", "\u202e", "\x1b]0", "\x07") if each in asked.screen.raw]
    said = [line for line in asked.screen.lines if "evil" in line or "xxx" in line or line.startswith("Send")]
    assert all(line.startswith("│ ") for line in said)
    assert sum(line.startswith("│ ") for line in asked.screen.lines) < 60
    asked.types(CTRL_D)
    assert await asked.given() == [{"action": "decline"}]


async def test_a_page_is_shown_in_full_with_its_host_and_opened_only_after_a_yes(ask: Ask) -> None:
    url = "https://pay.example@evil.example:8443/" + "p" * 150 + "?q=1"
    asked = await ask(
        {"message": "Please pay", "mode": "url", "url": url},
        {"message": "Again", "mode": "url", "url": "http://closed.example/x"},
        {"message": "Not a page", "mode": "url", "url": "file:///etc/passwd"},
        {"message": "No", "mode": "url", "url": "http://b.example/"},
    )
    await asked.shows("tables asks you to open a page:\n│ Please pay\n")
    await asked.shows("That is a page of evil.example:8443. Whatever you enter goes there.")
    assert url in asked.screen.text.replace("\n", "")
    await asked.answers("Open it? (y or n):", "y", "That is a page of closed.example.")
    await asked.answers("Open it? (y or n):", "y", "No browser can be opened here: open the address above yourself.")
    await asked.answers("Have you opened it? (y or n):", "y")
    await asked.shows("That is no web address, and it is not opened: file:///etc/passwd")
    await asked.shows("That is a page of b.example.")
    await asked.answers("Open it? (y or n):", "n")
    opened = [{**answer} for answer in await asked.given()]
    assert opened == [
        {"action": "accept", "opened": url},
        {"action": "accept", "opened": "http://closed.example/x"},
        {"action": "decline", "opened": "http://closed.example/x"},
        {"action": "decline", "opened": "http://closed.example/x"},
    ]


async def test_a_withdrawn_question_ends_its_form_and_other_output_waits_for_the_end_of_a_form(ask: Ask) -> None:
    asked = await ask({"message": "A table", "schema": TABLE}, {"message": "Sure?"})
    await asked.asks(PEOPLE)
    asked.types("1")
    await asked.asks("People (whole number from 1 to 12) [2]: 1")
    asked.program.process.send_signal(signal.SIGUSR2)
    asked.types("2" + ENTER)
    await asked.asks("Place (number of the choice):")
    assert "something else" not in asked.screen.text
    asked.program.process.send_signal(signal.SIGUSR1)
    await asked.shows("the question is withdrawn: its call has ended, or its time is over\n")
    await asked.shows("something else has happened\n")
    await asked.answers(AGREE, "y")
    assert await asked.given() == [{"withdrawn": True}, {"action": "accept", "content": {}}]
    assert asked.echoes


async def test_what_is_no_form_is_said_and_left_unanswered(ask: Ask) -> None:
    asked = await ask({"message": "Hm", "schema": {"properties": {"a": True}}, "problem": "a is wrong"})
    await asked.shows("Your last answer was refused: a is wrong")
    await asked.shows("cannot be shown as a form, because its schema is no list")
    assert await asked.given() == [{"action": "cancel"}]
