import sys

from scenarios import run

run(*sys.argv[1:])
