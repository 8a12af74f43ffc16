"""The table of RPCs, and how the port takes calls in turns and answers them."""
