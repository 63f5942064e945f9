"""inferc and its peers on the CPU: `python bench/peers.py build|run|report|limits`."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the repository, not this folder

from bench.peers_cpu.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
