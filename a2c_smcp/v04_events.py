"""Events and payloads of the published 0.4 generation that 000 and 002 do not have: resources, skills, blobs."""

from typing import Any, NotRequired

from typing_extensions import TypedDict

from a2c_smcp.smcp import AgentCallData

GET_BLOB_EVENT = "client:get_blob"
GET_RESOURCES_EVENT = "client:get_resources"
GET_SKILL_EVENT = "client:get_skill"
GET_SKILLS_EVENT = "client:get_skills"
PUT_BLOB_EVENT = "client:put_blob"
UPDATE_SKILLS_EVENT = "server:update_skills"
UPDATE_SKILLS_NOTIFICATION = "notify:update_skills"


class GetResourcesReq(AgentCallData):
    """One page of the resources of one MCP server. With `titles`, which is ours, they have `title` and `icons`, too."""

    computer: str
    mcp_server: str
    cursor: NotRequired[str | None]
    titles: NotRequired[bool]


class A2CResource(TypedDict):
    """A resource of an MCP server. `annotations` has `audience`, `priority` and `last_modified`."""

    uri: str
    name: str
    description: NotRequired[str]
    mime_type: NotRequired[str]
    size: NotRequired[int]
    annotations: NotRequired[dict[str, Any]]
    title: NotRequired[str]
    icons: NotRequired[list[dict[str, Any]]]
    _meta: NotRequired[dict[str, Any]]


class GetResourcesRet(TypedDict):
    resources: list[A2CResource]
    req_id: str
    next_cursor: NotRequired[str]


class GetSkillsReq(AgentCallData):
    computer: str


class A2CSkillRef(TypedDict):
    """A skill without its body. `path` is its folder on the computer."""

    name: str
    source: str
    path: str
    description: str
    uri: NotRequired[str]
    license: NotRequired[str]
    compatibility: NotRequired[str]
    version: NotRequired[str]
    allowed_tools: NotRequired[list[str]]
    tags: NotRequired[list[str]]
    skill_metadata: NotRequired[dict[str, Any]]


class GetSkillsRet(TypedDict):
    skills: list[A2CSkillRef]
    req_id: str


class GetSkillReq(AgentCallData):
    """One file of a skill; without `rel_path`, its `SKILL.md`.

    With `as_mcp`, an extension of ours, it is the file as MCP clients read it: a `SKILL.md` has its frontmatter.
    Without `rel_path` the answer is then `name`, `frontmatter`, and of each of the `files`, by path, `total_size` and
    `sha256`.
    """

    computer: str
    name: str
    rel_path: NotRequired[str | None]
    as_mcp: NotRequired[bool]


class GetSkillRet(TypedDict):
    """Has either `body` or `blob_handle`."""

    name: str
    rel_path: str
    mime_type: str
    total_size: int
    sha256: str
    req_id: str
    body: NotRequired[str]
    blob_handle: NotRequired[str]


class GetBlobReq(AgentCallData):
    """`binary` is ours: the agent takes the chunk as an attachment."""

    computer: str
    blob_handle: str
    chunk_offset: NotRequired[int | None]
    max_chunk_bytes: NotRequired[int | None]
    binary: NotRequired[bool]


class GetBlobRet(TypedDict):
    """A chunk. `blob` is base64, or an attachment; `total_size` and `sha256` are those of the whole."""

    blob_handle: str
    mime_type: str
    total_size: int
    sha256: str
    chunk_offset: int
    eof: bool
    blob: str | bytes
    req_id: str


class PutBlobReq(AgentCallData):
    """A chunk of a file for the computer. The first one declares the whole, and has no `upload_id`.

    `blob` is base64, or an attachment if the answer to the first one has said `binary`.
    """

    computer: str
    chunk_offset: int
    eof: bool
    blob: str | bytes
    upload_id: NotRequired[str | None]
    total_size: NotRequired[int]
    sha256: NotRequired[str]
    name_hint: NotRequired[str | None]


class PutBlobRet(TypedDict):
    """The answer to the last chunk says where the file is. `in_flight` and `binary`, in the first one, are ours."""

    upload_id: str
    chunk_offset: int
    req_id: str
    in_flight: NotRequired[int]
    binary: NotRequired[bool]
    landing_path: NotRequired[str]
    total_size: NotRequired[int]
    sha256: NotRequired[str]


class UpdateSkillsNotification(TypedDict):
    computer: str
