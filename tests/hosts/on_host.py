#!/usr/bin/env python3
"""Runs a command on one of the hosts that hosts.py made: on_host.py [OPTIONS OF SSH] HOST COMMAND..."""

import os
import sys

TAKES_VALUE = ("-o", "-l", "-p", "-i", "-F")


def main() -> None:
    given = sys.argv[1:]
    while given and given[0].startswith("-"):
        del given[: 2 if given[0] in TAKES_VALUE else 1]
    if len(given) < 2:
        sys.exit(__doc__)
    host, *command = given
    # As with ssh, the words are joined and a shell reads them again: who calls it has quoted them for that.
    line = f'hostname {host} && mount --bind /run/hosts/{host} /run/user && exec sh -c "$*"'
    there = ["nsenter", f"--net=/run/netns/{host}", "unshare", "--uts", "--mount"]
    os.execvp(there[0], [*there, "sh", "-c", line, host, *command])


main()
