"""What a pickled DataLoader of solar 0.1.0 asks for first: its parts lie elsewhere now, and it is refused in words."""

raise ImportError(
    "this is a pickled DataLoader of solar 0.1.0, which this version cannot make again: pickle its H5Dataset and its "
    "sampler instead, and keep loader.state_dict(); those load in any version"
)
