"""`python -P -m tidewheel`: the `tidewheel` command."""

from tidewheel.command import main

if __name__ == "__main__":
    main()
