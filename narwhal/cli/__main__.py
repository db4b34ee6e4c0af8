"""`python -m narwhal.cli`: the umbrella command where its script is not on the path."""

import sys

from narwhal.cli.main import main

sys.exit(main())
