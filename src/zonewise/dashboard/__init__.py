"""The dashboard: one live page that shows what Zonewise sees and decides, and what a change would do.

`sources` watches, `board` keeps what the page shows as tables of rows and tells those who look what changed in them,
`scraping` asks the node proxies how much traffic went where, and `server` serves it all with the files of `page`. Rows are
made by pure modules from the decisions of `planning` and `disruption`; nothing here decides anything of its own.
"""
