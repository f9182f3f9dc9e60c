"""The ranks of a job. `detect` is the public name; the rest is this package's own."""

from solar.io.channels.world import detect as detect
