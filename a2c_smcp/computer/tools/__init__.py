"""Which tools a Computer offers, under which names."""
