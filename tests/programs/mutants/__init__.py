"""Faults that were once in solar, each put back by a patch; and the command that shows that programs find them."""
