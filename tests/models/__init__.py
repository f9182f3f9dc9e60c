"""Models of parts of solar, of which all orders of events are tried. See README.md."""
