#!/usr/bin/env bash
# A real Slurm whose nodes are network namespaces of this machine: each node has its own address,
# host name and memory file system. Needs root, iproute2 and Debian's slurm-wlm and munge.
#   scripts/slurm.sh install               installs Slurm where it is missing; says so where it cannot
#   scripts/slurm.sh up FOLDER LAB NODES   namespaces LAB-sw (slurmctld) and LAB-1 …, partitions main and short
#   scripts/slurm.sh node FOLDER LAB N     starts the node nN again;  kill FOLDER LAB N  kills all of it
#   scripts/slurm.sh down FOLDER LAB       ends and removes all of it
#   scripts/slurm.sh on FOLDER LAB HOST COMMAND…   becomes a command on a node, or on the login machine (sw)
set -euo pipefail
verb=$1 here=$(cd "$(dirname "$0")" && pwd)
PATH=$PATH:/usr/sbin:/sbin

install() {
    if command -v slurmctld >/dev/null && command -v munged >/dev/null; then return 0; fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "no Slurm, and no way to install it here: its tests are skipped" >&2
        return 0
    fi
    echo "installing slurm-wlm and munge"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        slurm-wlm munge iproute2 >/dev/null
}
if [ "$verb" = install ]; then install; exit; fi
folder=$2 lab=$3

# A process with the network, host name and memory of a host; it must not be `ip netns exec`, which
# mounts /sys anew, and slurmd needs its cgroups.
inside() { # HOST NAME COMMAND…: the shell becomes it
    local host=$1 name=$2
    shift 2
    exec nsenter --net="/run/netns/$lab-$host" unshare --uts --mount bash -c '
        hostname "$0"; mount --bind "$1" /etc/hosts; mount -t tmpfs -o size=2g tmpfs /dev/shm
        shift; exec "$@"' "$name" "$folder/hosts" "$@"
}
start_node() { (inside "$1" "n$1" slurmd -N "n$1" -f "$folder/slurm.conf"); }

case $verb in
up)
    nodes=$4
    "$here/netns.sh" up "$lab" "$nodes"
    mkdir -p "$folder"/{state,log,munge}
    chmod 755 "$folder" "$folder/munge"
    { echo "127.0.0.1 localhost"; echo "::1 localhost"; echo "10.77.0.254 head"
      for i in $(seq "$nodes"); do echo "10.77.0.$i n$i"; done; } > "$folder/hosts"
    head -c 1024 /dev/urandom > "$folder/munge/key"
    chmod 400 "$folder/munge/key"
    munged --force --socket="$folder/munge/socket" --key-file="$folder/munge/key" \
        --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"
    cat > "$folder/slurm.conf" <<END
ClusterName=$lab
SlurmctldHost=head(10.77.0.254)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/ctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/log/ctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdTimeout=${SLURMD_TIMEOUT:-10}
KillWait=5
MinJobAge=600
JobRequeue=1
RequeueExit=75
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
SlurmdParameters=config_overrides
NodeName=n[1-$nodes] CPUs=2 RealMemory=4000 Feature=small State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=short Nodes=n[1-2] MaxTime=10 State=UP
END
    export SLURM_CONF=$folder/slurm.conf
    (inside sw head slurmctld -c -f "$folder/slurm.conf")
    for i in $(seq "$nodes"); do start_node "$i"; done
    for _ in $(seq 150); do
        if [ "$("$0" on "$folder" "$lab" sw sinfo -h -p main -t idle -o %D 2>/dev/null)" = "$nodes" ]; then exit 0; fi
        sleep 0.2
    done
    echo "not all nodes are idle after 30 s" >&2
    "$0" on "$folder" "$lab" sw sinfo >&2
    exit 1
    ;;
on)
    host=$4
    shift 4
    export SLURM_CONF=$folder/slurm.conf
    name=n$host
    if [ "$host" = sw ]; then name=head; fi
    inside "$host" "$name" "$@"
    ;;
node)
    "$here/netns.sh" mend "$lab" "$4"
    start_node "$4"
    ;;
kill) # as if its power were cut: the others hear nothing of it, not even that connections end
    "$here/netns.sh" cut "$lab" "$4"
    ip netns pids "$lab-$4" | xargs -r kill -9
    ;;
down)
    for host in $(ip netns list | cut -d' ' -f1 | grep -E "^$lab-" || true); do
        ip netns pids "$host" | xargs -r kill -9 || true
    done
    if [ -e "$folder/munge/pid" ]; then kill "$(cat "$folder/munge/pid")" || true; fi
    "$here/netns.sh" down "$lab"
    ;;
*)
    echo "not a verb: $verb" >&2
    exit 2
    ;;
esac
