"""Which sample comes when, for orders that are no plain shuffle: functions of (seed, epoch, position)."""
