"""Commands that run until they are stopped: broker, console, worker, shop, and demo."""
