"""`python -m tunesmith` is the command `tunesmith`."""

import sys

from tunesmith.cli import main

if __name__ == "__main__":
    sys.exit(main())
