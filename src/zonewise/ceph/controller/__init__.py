"""CSI controller service: volumes and snapshots, their journal, automatic takeover."""
