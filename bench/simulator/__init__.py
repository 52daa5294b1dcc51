"""Speed of the simulator's sweeps and the controller's decisions, compared to the Go tool and to goals."""
