"""The exceptions that solar raises, in one class tree.

    SolarError(Exception)
      LayoutError(SolarError, ValueError)   the file does not match the request, or is damaged
      PlanError(SolarError, ValueError)     the reads cannot be planned
      ReadError(SolarError, OSError)        reading failed: errno, path, offset
      CodecError(SolarError, ValueError)    stored bytes cannot be decoded, or a checksum is wrong

A message says what was asked, what was found, in which file, and what to do. A mistake in a call raises TypeError,
ValueError or IndexError, as everywhere in Python, not a SolarError.
"""


class SolarError(Exception):
    """Something outside the program is wrong: a file, its bytes, the memory given."""


class LayoutError(SolarError, ValueError):
    """The file does not match the request: not HDF5, no such dataset, damaged, or of a kind that cannot be read."""


class PlanError(SolarError, ValueError):
    """The reads cannot be planned with the given arguments."""


class ReadError(SolarError, OSError):
    """Reading failed. `errno` is the system's error code where there is one."""


class CodecError(SolarError, ValueError):
    """Stored bytes cannot be decoded, or do not match their checksum."""
