"""`python -m solar.selftest` is the command `solar selftest`: it checks this installation."""

import sys

from solar.cli import main

if __name__ == "__main__":
    raise SystemExit(main(["selftest", *sys.argv[1:]]))
