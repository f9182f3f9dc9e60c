"""Orders of samples other than a plain shuffle, each a function of (seed, epoch, position)."""
