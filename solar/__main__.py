"""`python -m solar` is the command `solar`."""

from solar.cli import main

raise SystemExit(main())
