"""The jobs are not installed: they are found from the project's root, here and in Spark's workers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
