"""The command `solar`: parses, calls, prints. A subcommand is imported when used, so `solar --help` is quick."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from solar import __version__
from solar.cli.words import error_text_of
from solar.errors import SolarError

# Each is a module of this package with HELP, DETAILS, add_arguments(parser) and run(arguments) -> exit code.
COMMANDS = {
    "bench": "how fast your file is read, beside PyTorch with h5py, and which training would wait for it",
    "compress": "writes a file again, its samples in few bytes, each value within a bound",
    "demo": "tries solar out on a file of its own, beside PyTorch with h5py; a few seconds",
    "digest": "one number for all batches of an epoch: what is in them, and in which order",
    "inspect": "what a file holds, and what reading it in random order will cost",
    "plan": "what an epoch will cost on your storage, by our policy and by others'",
    "probe": "measures a storage: latency, bandwidth, requests a second",
    "rehearse": "reads whole epochs as a training on these ranks would, and says whether it would wait",
    "serve": "reads files once for several trainings on this machine",
    "selftest": "checks this installation on small files of each kind, in some seconds",
    "stage": "reads a file's data to a local disk beforehand, or empties what is there",
    "tune": "how far inputs may be off before a model's gradients notice: which bound to choose",
    "verify": "whether a compressed file holds what its original does, or whether a file is damaged",
}


class OneLine(argparse.ArgumentParser):
    """Reports wrong arguments in one line, without pages of usage before it."""

    def error(self, message: str) -> NoReturn:
        """Ends the program."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit code: 1 for an error of solar's, which is printed in one line."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = OneLine(prog="solar", description="HDF5 samples at the speed of the machine.")
    parser.add_argument("--version", action="version", version=f"solar {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name in given:
            module = import_module(f"solar.cli.{name}")
            command.description, command.epilog = module.__doc__, module.DETAILS
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    chosen, left = parser.parse_known_args(given)
    if left:
        names = "" if left[0].startswith("-") else " (DATASETs stand right behind the FILE)"
        if all(map(os.path.isfile, left)):
            names = " (one FILE is asked for: quote a pattern of several, as in 'era5/*.nc')"
        commands.choices[chosen.command].error(f"unrecognized arguments: {' '.join(left)}{names}")
    try:
        code: int = chosen.run(chosen)
        return code
    except SolarError as error:
        print(f"solar: {error_text_of(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the flush at exit would complain once more
        return 141
    except OSError as error:  # such as a file that went meanwhile
        print(f"solar: {error_text_of(error)}", file=sys.stderr)
        return 1
