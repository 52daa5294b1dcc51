"""Controller loop, work queue, leader elector and event recorder."""
