"""The planner: what is read, kept and dropped, and when. See README.md."""
