"""The ranks of a job. `detect` is the public name; the rest is this package's own."""

from solar.io.ranks.world import detect as detect
