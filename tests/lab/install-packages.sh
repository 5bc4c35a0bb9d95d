#!/bin/sh
# Installs what the tests in this folder use, and nothing twice. Debian, root. No service is started by it.
set -eu

# One line per part of the lab.
packages="
network-manager dnsmasq-base dbus nftables iproute2 python3-dbusmock
util-linux procps strace
systemd-container mmdebstrap qemu-utils
xfsprogs e2fsprogs
influxdb prometheus-pushgateway radicale
prometheus prometheus-node-exporter logrotate
lintian openssl
fish zsh mandoc groff man-db
"
# Large, and for the slow tests alone.
[ "${1:-}" != full ] || packages="$packages qemu-user-static"

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "cannot install$missing: not root; the tests that need them are skipped" >&2
    exit 0
fi

# While this stands, no package starts its service here; what was there before comes back.
guard=/usr/sbin/policy-rc.d
kept=""
if [ -e "$guard" ]; then
    kept=$(mktemp)
    cp -p "$guard" "$kept"
fi
restore() {
    if [ -n "$kept" ]; then cp -p "$kept" "$guard" && rm -f "$kept"; else rm -f "$guard"; fi
}
trap restore EXIT
trap 'exit 1' INT TERM
printf '#!/bin/sh\nexit 101\n' > "$guard"
chmod 755 "$guard"

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086 # a list of words
apt-get install -y -q --no-install-recommends $missing
