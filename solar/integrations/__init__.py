"""solar inside training frameworks: one module each, imported by name, which alone imports its framework."""
