"""The leader: budget status, rollouts by eviction, scale-down grants."""
