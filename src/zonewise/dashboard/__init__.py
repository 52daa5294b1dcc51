"""The dashboard: a live page of the cluster's zones, Services, budgets and volumes, and of what-if changes.

`informers` watches the cluster, `live_state` holds the rows of the page's tables and streams their changes, `scraper`
reads traffic counters of the node proxies, and `server` serves the files of `page`. The pure modules of `decide` build
rows from `planning`, `diagnostics` and `disruption`; the dashboard itself decides nothing.
"""
