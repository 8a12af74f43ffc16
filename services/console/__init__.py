"""The console: pages of a broker in a browser, made by the server; it asks the broker over HTTP only."""
