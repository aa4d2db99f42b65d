"""What `make test-clients` runs: all that needs Node.js or a framework. Their fixtures are those of other peers."""

from tests.clients.bridged import signing_in
from tests.interop.conftest import drive, front
from tests.stage.site import site

__all__ = ["drive", "front", "signing_in", "site"]
