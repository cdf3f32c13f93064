#!/bin/sh
# Makes an authority, and a certificate for each host that is named: `certificates.sh DIRECTORY HOST...`. An authority
# that is there already signs the new ones. Keep ca.key where no node is.
set -eu
directory=${1:?where the files go}
shift
umask 077
mkdir -p "$directory"
cd "$directory"
curve='-pkeyopt ec_paramgen_curve:P-256 -newkey ec -nodes'
if [ ! -e ca.crt ]; then
  # shellcheck disable=SC2086
  openssl req -x509 $curve -days 3650 -subj '/CN=countwheel nodes' \
    -addext basicConstraints=critical,CA:TRUE -keyout ca.key -out ca.crt
fi
for host in "$@"; do
  case $host in
    *[!0-9.]*) kind=DNS ;;
    *) kind=IP ;;
  esac
  # shellcheck disable=SC2086
  openssl req $curve -subj "/CN=$host" -keyout "$host.key" -out "$host.csr"
  printf 'subjectAltName=%s:%s\nbasicConstraints=CA:FALSE\n' "$kind" "$host" >"$host.ext"
  # Beside the old one first: a node reads the files when they change, the certificate with its key.
  openssl x509 -req -in "$host.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 \
    -extfile "$host.ext" -out "$host.new"
  mv "$host.new" "$host.crt"
  rm "$host.csr" "$host.ext"
done
