"""`python -m burnt` is the command `burnt`."""

import sys

from burnt.cli import main

sys.exit(main())
