"""Programs that a lab needs, built once from their Go modules into a cache."""
