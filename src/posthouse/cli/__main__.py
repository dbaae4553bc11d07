import sys

from posthouse.cli import main

sys.exit(main())
