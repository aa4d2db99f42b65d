"""Events and payloads of devices: which keys a computer has, and requests that only it can open (WIRE §10)."""

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from a2c_smcp.smcp import AgentCallData

GET_DEVICE_EVENT = "client:get_device"
SEALED_EVENT = "client:sealed"

Sealing: TypeAlias = Literal["off", "prefer", "require"]


class GetDeviceReq(AgentCallData):
    computer: str
    nonce: str


class DeviceSuccession(TypedDict):
    """An earlier identity of a device, and its signature that vouches for the next one."""

    identity: str
    sig: str


class GetDeviceRet(TypedDict):
    """The keys of a computer, signed by its identity together with the nonce of the request. Keys are base64url."""

    identity: str
    kid: str
    kem: str
    e2e: Sealing
    was: NotRequired[list[DeviceSuccession]]
    sig: str
    req_id: NotRequired[str]


class SealedReq(AgentCallData):
    """A request that the Server cannot read. It deduplicates, keeps and cancels it by `req_id` alone."""

    computer: str
    office_id: str
    timeout: int
    extend: NotRequired[bool]
    kid: str
    sealed: str


class SealedRet(TypedDict):
    req_id: str
    sealed: str


class SealedTell(AgentCallData):
    """A tell that the Server cannot read. `seq` rises from one to the next of the same `req_id`."""

    computer: str
    seq: int
    sealed: str
