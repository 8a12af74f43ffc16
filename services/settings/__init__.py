"""Every setting of broker and commands, and where its value comes from."""
