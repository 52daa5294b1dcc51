"""CSI node service: stage, publish, grow and measure volumes on one machine."""
