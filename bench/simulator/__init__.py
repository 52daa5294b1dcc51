"""The simulator's sweeps and the controller's decisions against the Go tool's rates and their goals."""
