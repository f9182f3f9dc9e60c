"""solar in training frameworks, one module for each. Only that module imports the framework; import it by name."""
