"""Large contents in chunks: what an agent fetches from computers, and the files that it sends to them."""

from a2c_smcp.agent.blobs.downloads import BlobRef, Downloads
from a2c_smcp.agent.blobs.items import complete_items, handles_in
from a2c_smcp.agent.blobs.transfers import MAX_RESULT, AnyPath, Receive, Transfers, is_complete

__all__ = [
    "MAX_RESULT",
    "AnyPath",
    "BlobRef",
    "Downloads",
    "Receive",
    "Transfers",
    "complete_items",
    "handles_in",
    "is_complete",
]
