#!/usr/bin/env bash
# Hosts in network namespaces: a switch, its hosts, and what goes wrong between them. Needs root and
# iproute2, and iptables for `part` and `loss`. Nothing of it can reach outside the machine.
#   scripts/netns.sh up LAB HOSTS       LAB-sw (10.77.0.254) and LAB-1 … LAB-HOSTS (10.77.0.1 …)
#   scripts/netns.sh cut LAB HOST       unplugs a host;  mend LAB HOST  plugs it in again
#   scripts/netns.sh part LAB A B       A and B do not hear each other;  meet LAB A B  they do again
#   scripts/netns.sh loss LAB HOST P    loses packets that come to a host with probability P (0: none)
#   scripts/netns.sh down LAB           removes all of it
# A command on a host: ip netns exec LAB-1 COMMAND…
set -euo pipefail
verb=$1 lab=$2 net=10.77.0
hosts() { ip netns list | cut -d' ' -f1 | grep -E "^$lab-[0-9]+$" || true; }
rule() { # VERB A B: what A does with packets from B
    ip netns exec "$lab-$2" iptables -w "$1" INPUT -s "$net.$3" -j DROP
}

case $verb in
up)
    ip netns add "$lab-sw"
    ip -n "$lab-sw" link set lo up
    ip -n "$lab-sw" link add br0 type bridge
    ip -n "$lab-sw" addr add "$net.254/24" dev br0
    ip -n "$lab-sw" link set br0 up
    for i in $(seq "$3"); do
        ip netns add "$lab-$i"
        ip -n "$lab-sw" link add "p$i" type veth peer name eth0 netns "$lab-$i"
        ip -n "$lab-sw" link set "p$i" master br0 up
        ip -n "$lab-$i" addr add "$net.$i/24" dev eth0
        ip -n "$lab-$i" link set lo up
        ip -n "$lab-$i" link set eth0 up
    done
    ;;
cut) ip -n "$lab-sw" link set "p$3" down ;;
mend) ip -n "$lab-sw" link set "p$3" up ;;
part) rule -A "$3" "$4" && rule -A "$4" "$3" ;;
meet) rule -D "$3" "$4" && rule -D "$4" "$3" ;;
loss)
    ip netns exec "$lab-$3" iptables -w -F INPUT
    if [ "$4" != 0 ]; then
        ip netns exec "$lab-$3" iptables -w -A INPUT -i eth0 -m statistic --mode random \
            --probability "$4" -j DROP
    fi
    ;;
down) for name in $(hosts) "$lab-sw"; do ip netns del "$name"; done ;;
*) echo "not a verb: $verb" >&2; exit 2 ;;
esac
