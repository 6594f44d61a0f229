"""Imports structlog without rich.

structlog imports rich, and with it pygments, for tracebacks with local variables. The log prints plain ones, which
contain no tokens, so rich would only take a tenth of the CPU time of a start. Later imports of rich are not affected.
"""

from __future__ import annotations

import sys

if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # an import of it raises ModuleNotFoundError
    import structlog  # noqa: F401

    del sys.modules["rich"]
