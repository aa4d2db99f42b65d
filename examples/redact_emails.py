"""A scanner that removes e-mail addresses from what agents get, and refuses to send any to a tool.

As a function, inside the computer:

    a2c-smcp computer --config servers.json --scanner examples/redact_emails.py:scan

As a command, `python examples/redact_emails.py`, in a process of its own for each question:

    a2c-smcp computer --config servers.json --scanner "python examples/redact_emails.py"

A scanner gets a JSON object and answers with one: `{}` lets pass, `{"refuse": "why"}` refuses, `{"arguments": {…}}` and
`{"result": {…}}` replace. Whatever else it does, also an error or no answer in time, refuses the call.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")


def scan(call: dict[str, Any]) -> dict[str, Any]:
    """Before the call: no address may be in the arguments. After it: every address in the result is replaced."""
    if call["when"] == "before":
        has_some = without_emails(call["arguments"]) != call["arguments"]
        return {"refuse": "e-mail addresses stay here"} if has_some else {}
    redacted = without_emails(call["result"])
    return {} if redacted == call["result"] else {"result": redacted}


def without_emails(value: Any) -> Any:
    if isinstance(value, str):
        return EMAIL.sub("[e-mail]", value)
    if isinstance(value, list):
        return [without_emails(each) for each in value]
    if isinstance(value, dict):
        return {without_emails(key): without_emails(each) for key, each in value.items()}
    return value


def main() -> None:
    json.dump(scan(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
