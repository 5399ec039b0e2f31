import sys

from baton_swiftkv.cli import main

sys.exit(main())
