"""`zonewise doctor`: checks and findings. Pure."""
