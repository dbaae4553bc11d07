"""`posthouse serve`, to which 127.0.0.1 alone is this machine: 127.0.0.2 is another one.

python -m tests.security.nearby FLAGS
"""

import ipaddress
import sys

from posthouse.server.listener import Limits
from tests.server.hurried import main

if __name__ == "__main__":
    sys.exit(main(Limits(local_networks=(ipaddress.ip_network("127.0.0.1/32"),))))
