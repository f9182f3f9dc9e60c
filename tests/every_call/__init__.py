"""Programs of which one call to the system fails, is late or hangs: the batches are right, or an error says why not."""
