"""The module that pickled DataLoaders of solar 0.1.0 name first: they are refused here with a clear message."""

raise ImportError(
    "this is a pickled DataLoader of solar 0.1.0, which this version cannot make again: pickle its H5Dataset and its "
    "sampler instead, and keep loader.state_dict(); those load in any version"
)
