"""Programs that are drawn at random: each compares solar's loader with torch's, batch for batch. See __main__.py."""
