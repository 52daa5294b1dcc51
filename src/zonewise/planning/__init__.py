"""Forecasts of routing: a snapshot of a cluster, changes to it, and what becomes of every Service. Pure.

`snapshot` builds a cluster from a dump or a live read, `whatif` changes it, and `forecast` routes every Service with the
functions that the controllers use. `zonewise plan` and the dashboard show the result.
"""
