"""What `make test-clients` runs: all that needs Node.js or a framework. Their fixtures are those of other peers."""

from tests.interop.conftest import drive, front
from tests.stage.site import site

__all__ = ["drive", "front", "site"]
