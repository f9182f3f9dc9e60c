"""The ranks of a job. `detect` is the public name; the rest is internal to this package."""

from solar.io.channels.world import detect as detect
