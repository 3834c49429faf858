"""`python -m gpurack` is the same command."""

import sys

from gpurack.cli import main

sys.exit(main())
