"""The package's logger.

``INFINIOP_LOG``, else ``INFINICORE_LOG_LEVEL``, sets its level (a name such as ``debug`` or a number).
Records then reach whatever handlers the program has configured; when it has configured none, they go to
standard error, because asking for a level in the environment is asking to see the lines.
"""

from __future__ import annotations

import logging

from . import _environment

logger = logging.getLogger("infiniop_py")
logger.addHandler(logging.NullHandler())

VARIABLES = ("INFINIOP_LOG", "INFINICORE_LOG_LEVEL")


class _LastResort(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error as long as the root logger has no handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def _configure() -> None:
    for name in VARIABLES:
        text = _environment.variable(name).strip()
        if not text:
            continue
        try:
            level = int(text) if text.isdecimal() else logging.getLevelName(text.upper())
        except ValueError:  # thousands of digits
            level = text
        handler = _LastResort()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)
        if isinstance(level, int):
            logger.setLevel(level)
        else:
            logger.warning(
                "%s=%r is no log level; known are debug, info, warning, error, critical", name, text
            )
        return


_configure()
