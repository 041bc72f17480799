"""An arm whose package is not installed."""

from __future__ import annotations

from matrix.extras import import_extra

import_extra("a_peer_that_nobody_has", "the arm missing", "peers")
