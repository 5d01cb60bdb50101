"""The routes of the HTTP interface, one module for each thing that a client can see or change.

`dicast.app.server.interface` puts their routers together; the modules beside it have what the routes share.
"""
