"""`python -m millstream` is the command line."""

from millstream_command import main

if __name__ == "__main__":
    main()
