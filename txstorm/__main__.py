"""``python -m txstorm``: the command line."""

from txstorm.cli.main import main

if __name__ == "__main__":
    main()
