"""CSI node service: stage, publish, expand and measure volumes on one node."""
