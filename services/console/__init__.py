"""The web console of a broker. The server renders its pages and calls the broker over HTTP only."""
