"""A real federation on Flower: the same algorithm files as the simulator, across processes and machines.

`server` is the server app with its rounds, `site` what runs at a site, `gate` the only way from sites to SuperLink, and
`deploy` writes and changes folders, keys and certificates. What several of them need is here: the files' `schema` and
`settings`, the `plan` that server and sites derive from them, the `wire` format, and in `flower` all that is used of
Flower's internals.
"""
