"""Items of answers whose content went by the side band (PROTOCOL-0.4 §7): find the marks, put the content back.

An item is a content item of a tool result or of a prompt, or one of the `contents` of a resource. Its content is put
where computers take it from: into `data`, `blob` or `text`, in the item or in its embedded `resource`. Or binary
content is written to files, that which came in the item as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from a2c_smcp.agent.blobs.downloads import BlobRef, Downloads, OnBytes
from a2c_smcp.agent.blobs.files import file_name, write_file
from a2c_smcp.errors import AnswerTooLarge, BadRequest, SMCPError
from a2c_smcp.protocol.chunks import from_base64, to_base64
from a2c_smcp.protocol.results import SAVED_TO

__all__ = ["complete_items", "handles_in", "ref_in"]

_OWN = "a2c_"


async def complete_items(
    downloads: Downloads,
    items: list[Any],
    computer: str,
    office: str | None,
    on_bytes: OnBytes | None = None,
    folder: Path | None = None,
) -> list[Any]:
    """The items with their contents. Raises `AnswerTooLarge` if they are too much for memory, and other `SMCPError`s.

    With a `folder`, binary contents are written to files in it, and are not in the items; their `_meta` says where they
    are. Raises `OSError` if that fails.
    """
    refs = [ref_in(item, computer, office) for item in items]
    if folder is None and not any(refs):
        return items
    receiving = _Receiving(downloads, folder, on_bytes, sum(ref.total_size or 0 for ref in refs if ref))
    receiving.require_memory(ref for item, ref in zip(items, refs, strict=True) if ref and not receiving.saves(item))
    return [await receiving.received(item, ref) for item, ref in zip(items, refs, strict=True)]


def handles_in(items: Iterable[Any]) -> list[str]:
    """The handles of the items whose content is not there."""
    return [ref.handle for item in items if (ref := ref_in(item, "", None))]


def ref_in(item: Any, computer: str, office: str | None) -> BlobRef | None:
    """Where the content of an item, or of a whole result, is, if it is not in it."""
    meta = item.get("_meta") if isinstance(item, Mapping) else None
    handle = meta.get("a2c_blob_handle") if isinstance(meta, Mapping) else None
    if not isinstance(handle, str) or not handle or not isinstance(meta, Mapping):
        return None
    size, sha256 = meta.get("a2c_total_size"), meta.get("a2c_sha256")
    return BlobRef(
        computer,
        office,
        handle,
        size if type(size) is int and size >= 0 else None,
        sha256.lower() if isinstance(sha256, str) else None,
    )


@dataclass(slots=True)
class _Receiving:
    downloads: Downloads
    folder: Path | None
    on_bytes: OnBytes | None
    total: int
    done: int = 0
    saved: int = 0

    def saves(self, item: Any) -> bool:
        """Whether the item has binary content that goes into a file."""
        return self.folder is not None and isinstance(item, Mapping) and _field(item) in ("data", "blob")

    def require_memory(self, refs: Iterable[BlobRef]) -> None:
        size = sum(ref.total_size or 0 for ref in refs)
        if size > self.downloads.most:
            raise AnswerTooLarge(
                f"{size} bytes of content stayed on the computer, this agent takes {self.downloads.most} into memory: "
                "have them written to files with save_to=, or raise max_result",
                size=size,
            )

    async def received(self, item: Any, ref: BlobRef | None) -> Any:
        if self.saves(item):
            return await self._saved(item, ref)
        if ref is None:
            return item
        content = await self.downloads.read(ref, self._progress())
        self.done += len(content)
        return _with(_unmarked(item), _field(item), content)

    async def _saved(self, item: Mapping[str, Any], ref: BlobRef | None) -> Any:
        assert self.folder
        inline = _inline(item) if ref is None else None
        if ref is None and inline is None:
            return item

        async def write(file: BinaryIO) -> None:
            if ref:
                self.done += await self.downloads.write_to(file, ref, self._progress())
            else:
                file.write(inline or b"")

        self.saved += 1
        path = await write_file(self.folder / file_name(item, self.saved), write)
        item = _with(_unmarked(item), _field(item), b"")
        return {**item, "_meta": {**item.get("_meta", {}), SAVED_TO: str(path)}}

    def _progress(self) -> OnBytes | None:
        on_bytes, before, total = self.on_bytes, self.done, self.total
        return (lambda size, _: on_bytes(before + size, total)) if on_bytes else None


def _holder(item: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = item.get("resource")
    return inner if isinstance(inner, Mapping) and "data" not in item else item


def _field(item: Mapping[str, Any]) -> str:
    """The field that has the content, or had it."""
    holder = _holder(item)
    if "data" in holder or holder.get("type") in ("image", "audio"):
        return "data"
    return next((field for field in ("blob", "text") if field in holder), "data" if "uri" not in holder else "blob")


def _inline(item: Mapping[str, Any]) -> bytes | None:
    content = _holder(item).get(_field(item))
    try:
        return from_base64(content) if isinstance(content, str) and content else None
    except BadRequest:
        return None


def _unmarked(item: Mapping[str, Any]) -> dict[str, Any]:
    found = item.get("_meta")
    meta = (
        {key: value for key, value in found.items() if not key.startswith(_OWN)} if isinstance(found, Mapping) else {}
    )
    rest = {key: value for key, value in item.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


def _with(item: dict[str, Any], field: str, content: bytes) -> dict[str, Any]:
    new = {field: _decoded(content) if field == "text" else to_base64(content)}
    holder = _holder(item)
    return {**item, **new} if holder is item else {**item, "resource": {**holder, **new}}


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SMCPError("a text that came in chunks is not UTF-8") from None
