"""The planner: decides what to read, keep and drop, and when. See README.md."""
