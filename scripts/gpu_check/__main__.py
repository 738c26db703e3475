"""See scripts/gpu-check."""

import sys

from gpu_check.runner import main

sys.exit(main())
