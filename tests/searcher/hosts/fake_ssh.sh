#!/bin/sh
# Stands in for ssh: fake_ssh.sh HOST COMMAND runs COMMAND by a shell, as a login on HOST would.
# w0, w1, ... are hosts, at 127.0.0.2, 127.0.0.3, ... on this machine; no other name is known.
host=$1
shift
number=${host#w}
case $host in
  w[0-9]) ;;
  *) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255 ;;
esac
DSAT_TEST_HOST=$host
SSH_CONNECTION="127.0.0.1 40000 127.0.0.$((number + 2)) 22"
export DSAT_TEST_HOST SSH_CONNECTION
cd / && exec /bin/sh -c "$*"
