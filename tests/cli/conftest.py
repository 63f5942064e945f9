"""The toy artifact of the runtime's tests, for commands that need one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))

from runtime_artifacts import toy_artifact

__all__ = ["toy_artifact"]
