"""Import path of the jobs: they are not installed, so the project root is added, also for Spark's workers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
