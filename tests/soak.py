"""How long the tests that find more the longer they run go on: INFINIOP_SOAK=10 is ten times as long."""

from __future__ import annotations

import os

SCALE = float(os.environ.get("INFINIOP_SOAK", "1"))
