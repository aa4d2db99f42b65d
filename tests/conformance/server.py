"""What MCP's conformance suite tests as a server: a registry that has everything, served over streamable HTTP.

    python server.py --port 8000
    conformance server --url http://127.0.0.1:8000/mcp --requirements 2026-07-28

Without `--port` any free one is used. The URL is printed when clients can connect. The names and texts below are those
that the suite asks for. The package with `[all]` is all that this program needs.
"""

from __future__ import annotations

import argparse
import asyncio
from base64 import b64decode
from typing import Any

from a2c_smcp.registry import AsyncToolContext, Audio, EmbeddedResource, Image, MCPRegistry, ToolContext

RED_DOT = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==")
SILENCE = b64decode("UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=")

registry = MCPRegistry()


# Tools: content


@registry.tool
def test_simple_text() -> str:
    """Returns a text."""
    return "This is a simple text response for testing."


@registry.tool
def test_image_content() -> Image:
    """Returns an image."""
    return Image(RED_DOT)


@registry.tool
def test_audio_content() -> Audio:
    """Returns a sound."""
    return Audio(SILENCE)


@registry.tool
def test_embedded_resource() -> EmbeddedResource:
    """Returns a resource."""
    return EmbeddedResource("test://embedded-resource", "This is an embedded resource content.", "text/plain")


@registry.tool
def test_multiple_content_types() -> list[Any]:
    """Returns a text, an image and a resource."""
    data = EmbeddedResource("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return ["Multiple content types test:", Image(RED_DOT), data]


@registry.tool
def test_error_handling() -> None:
    """Fails."""
    raise ValueError("This tool intentionally returns an error for testing")


# Tools: progress and logs


@registry.tool
async def test_tool_with_progress(context: AsyncToolContext) -> str:
    """Reports progress three times."""
    for progress in (0, 50, 100):
        await context.progress(progress, 100)
        await asyncio.sleep(0.05)
    return "done"


@registry.tool
async def test_tool_with_logging(context: AsyncToolContext) -> str:
    """Sends three log messages."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.log("info", message)
        await asyncio.sleep(0.05)
    return "done"


@registry.tool
def test_logging_tool(context: ToolContext) -> str:
    """Sends a log message, if the client wants one."""
    context.log("info", "a message for those who want it")
    return "done"


# Tools: questions


def form(**fields: str) -> dict[str, Any]:
    """The schema of a form whose fields of these types must all be filled in."""
    properties = {name: {"type": kind} for name, kind in fields.items()}
    return {"type": "object", "properties": properties, "required": list(fields)}


@registry.tool
def test_sampling(prompt: str, context: ToolContext) -> str:
    """Asks the client's model."""
    result = context.sample(prompt, 100)
    return f"LLM response: {text_in(result)}"


@registry.tool
def test_elicitation(message: str, context: ToolContext) -> str:
    """Asks for a name and an address."""
    schema = form(username="string", email="string")
    schema["properties"]["username"]["description"] = "User's response"
    schema["properties"]["email"]["description"] = "User's email address"
    answer = context.ask(message, schema)
    return f"User response: action: {answer.action}, content: {answer.content}"


@registry.tool
async def test_elicitation_sep1034_defaults(context: AsyncToolContext) -> str:
    """Asks with a default for each type."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        },
    }
    answer = await context.ask("Please check these values", schema)
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


@registry.tool
async def test_elicitation_sep1330_enums(context: AsyncToolContext) -> str:
    """Asks with each kind of a choice."""
    titled = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
    options = ["option1", "option2", "option3"]
    names = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}
    schema = {
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": options},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {"type": "string", **names},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        },
    }
    answer = await context.ask("Please choose", schema)
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


NAME, CONFIRMATION = form(name="string"), form(ok="boolean")


@registry.tool
async def test_input_required_result_elicitation(context: AsyncToolContext) -> str:
    """Asks for a name."""
    answer = await context.ask("What is your name?", NAME, key="user_name")
    return f"Hello, {(answer.content or {}).get('name')}!"


@registry.tool
async def test_input_required_result_sampling(context: AsyncToolContext) -> str:
    """Asks the client's model."""
    return text_in(await context.sample("What is the capital of France?", 100, key="capital_question"))


@registry.tool
async def test_input_required_result_list_roots(context: AsyncToolContext) -> list[str]:
    """Asks for the folders of the client."""
    return [root["uri"] for root in await context.roots(key="client_roots")]


@registry.tool
async def test_input_required_result_request_state(context: AsyncToolContext) -> str:
    """Asks for a confirmation, and says that it came back to the same call."""
    answer = await context.ask("Please confirm", CONFIRMATION, key="confirm")
    return f"state-ok: {answer.action}"


@registry.tool
async def test_input_required_result_tampered_state(context: AsyncToolContext) -> str:
    """Asks for a confirmation."""
    answer = await context.ask("Please confirm", CONFIRMATION, key="confirm")
    return f"confirmed: {answer.action}"


@registry.tool
async def test_input_required_result_multiple_inputs(context: AsyncToolContext) -> str:
    """Asks three things at once."""
    name, greeting, roots = await asyncio.gather(
        context.ask("What is your name?", NAME, key="user_name"),
        context.sample("Generate a greeting", 50, key="greeting"),
        context.roots(key="client_roots"),
    )
    return f"{text_in(greeting)} {(name.content or {}).get('name')}, you have {len(roots)} roots"


@registry.tool
async def test_input_required_result_multi_round(context: AsyncToolContext) -> str:
    """Asks twice."""
    name = await context.ask("Step 1: What is your name?", NAME, key="step1")
    color = await context.ask("Step 2: What is your favorite color?", form(color="string"), key="step2")
    return f"{(name.content or {}).get('name')} likes {(color.content or {}).get('color')}"


@registry.tool
async def test_input_required_result_capabilities(context: AsyncToolContext) -> str:
    """Asks only what the client can answer."""
    if "ask" in context.can:
        return (await context.ask("What is your name?", NAME)).action
    return text_in(await context.sample("Generate a greeting", 50))


@registry.tool
async def test_missing_capability(context: AsyncToolContext) -> str:
    """Needs the client's model."""
    return text_in(await context.sample("Say something", 50))


@registry.tool
async def test_streaming_elicitation(context: AsyncToolContext) -> str:
    """Asks for a confirmation."""
    return (await context.ask("Please confirm", CONFIRMATION)).action


# Tools: lists that change, schemas


@registry.tool
def test_trigger_tool_change() -> str:
    """Adds a tool and takes it away."""
    registry.tool(name="test_changing_tool")(lambda: "changed")
    registry.unregister("test_changing_tool")
    return "changed"


@registry.tool
def test_trigger_prompt_change() -> str:
    """Adds a prompt and takes it away."""
    registry.prompt(name="test_changing_prompt")(lambda: "changed")
    registry.remove_prompt("test_changing_prompt")
    return "changed"


class ToolWithSchema:
    """A tool with a schema that no signature of a function gives."""

    def __init__(self, name: str, description: str, input_schema: dict[str, Any]) -> None:
        self.name, self.description, self.input_schema = name, description, input_schema

    def call(self, arguments: dict[str, Any]) -> str:
        return f"called with {', '.join(arguments) or 'nothing'}"


TEXT = {"type": "string"}
ADDRESS = {"$anchor": "addressDef", "type": "object", "properties": {"street": TEXT, "city": TEXT}}
METHOD = {"type": "string", "enum": ["phone", "email"]}
PROPERTIES = {
    "name": TEXT,
    "address": {"$ref": "#/$defs/address"},
    "contactMethod": METHOD,
    "phone": TEXT,
    "email": TEXT,
}
EVERY_KEYWORD = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": PROPERTIES,
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
REGION = {**form(region="string"), "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
registry.register(ToolWithSchema("json_schema_2020_12_tool", "Tool with JSON Schema 2020-12 features", EVERY_KEYWORD))
registry.register(ToolWithSchema("test_header_parameter", "Has a parameter that is also an HTTP header", REGION))


# Resources

STATIC, IMAGE = "This is the content of the static text resource.", "An image that never changes"
registry.add_resource("test://static-text", STATIC, name="Static text", description="A text that never changes")
registry.add_resource("test://static-binary", RED_DOT, name="Static binary", description=IMAGE, mime_type="image/png")
registry.add_resource("test://watched-resource", "Watched.", name="Watched", description="A text that clients watch")


@registry.resource("test://template/{id}/data", name="Template", mime_type="application/json")
def data_of(id: str) -> dict[str, Any]:  # noqa: A002  # the name of the variable in the URI
    """Data for an id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


# Prompts


@registry.prompt
def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


@registry.prompt(complete={"arg1": ["paris", "park", "party", "test"]})
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments.

    Args:
        arg1: First test argument
        arg2: Second test argument
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@registry.prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Any]:  # noqa: N803  # MCP's name of the argument
    """A prompt with a resource.

    Args:
        resourceUri: URI of the resource to embed
    """
    resource = EmbeddedResource(resourceUri, "Embedded resource content for testing.", "text/plain")
    return [resource, "Please process the embedded resource above."]


@registry.prompt
def test_prompt_with_image() -> list[Any]:
    """A prompt with an image."""
    return [Image(RED_DOT), "Please analyze the image above."]


@registry.prompt
async def test_input_required_result_prompt(context: AsyncToolContext) -> str:
    """A prompt that asks for its context."""
    answer = await context.ask("What context should the prompt use?", form(context="string"), key="user_context")
    return f"Use this context: {(answer.content or {}).get('context')}"


def text_in(result: dict[str, Any]) -> str:
    """The text that the client's model has answered with."""
    content = result.get("content")
    return str(content.get("text")) if isinstance(content, dict) else str(content)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, default=0)
    port: int = options.parse_args().port
    server = registry.as_mcp_server("everything", version="1.0", title="A registry that has everything")
    server.run_http(port, on_listening=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
