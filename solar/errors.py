"""The errors of solar, one tree.

    SolarError(Exception)
      LayoutError(SolarError, ValueError)   the file is not what was asked for, or is damaged
      PlanError(SolarError, ValueError)     cannot be planned
      ReadError(SolarError, OSError)        bytes did not come: errno, path, offset
      CodecError(SolarError, ValueError)    stored bytes cannot be decoded, or a checksum is wrong

A message says what was asked, what was found, in which file, and what to do. A mistake in a call is TypeError,
ValueError or IndexError as everywhere in Python, not a SolarError.
"""


class SolarError(Exception):
    """Something outside the program is not as it must be: a file, its bytes, the memory given."""


class LayoutError(SolarError, ValueError):
    """The file is not what was asked for: no HDF5, no such dataset, damaged, or of a kind that cannot be read."""


class PlanError(SolarError, ValueError):
    """The reads cannot be planned with what was given."""


class ReadError(SolarError, OSError):
    """Bytes did not come. `errno` is the system's code where there is one."""


class CodecError(SolarError, ValueError):
    """Stored bytes cannot be decoded, or do not match their checksum."""
