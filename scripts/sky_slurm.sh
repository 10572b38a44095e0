#!/usr/bin/env bash
# A real Slurm behind a real sshd, for SkyPilot. Nodes n1, n2, … have a host name, a /tmp, a /dev/shm, processes
# and an address (127.0.0.1N) each. They share the disk, the home of the user and the network of this machine,
# because SkyPilot installs its runtime on them from pip's index. Needs root, iproute2, openssl and Debian's
# slurm-wlm, munge, openssh-server and rsync.
#   scripts/sky_slurm.sh install                  installs what is missing; says so where it cannot
#   scripts/sky_slurm.sh up FOLDER NODES VENV     starts all; VENV has SkyPilot and uv; FOLDER is not below /tmp
#   scripts/sky_slurm.sh on FOLDER COMMAND…       becomes a command on the machine of the user, who has `sky`
#   scripts/sky_slurm.sh down FOLDER              ends SkyPilot's server, the nodes and all that runs on them
# KEEP names Python interpreters that the nodes need and that live below the home of this machine.
#
# The machine of the user is a network namespace (10.78.0.2; this machine is 10.78.0.1 there) with
# FOLDER/client as its home: ~/.slurm/config names the login node, and ~/.sky/config.yaml sets
# `jobs.controller.consolidation_mode`, by which SkyPilot's server runs managed jobs itself.
# What SkyPilot would download is there before it asks, so that the lab needs no internet but pip's index:
#   uv              in ~/.local/bin of every cluster; a prolog of Slurm links it there
#   Python 3.10     in PATH of the nodes
#   its own wheel   built by its own function before the server starts
#   the internet    the server takes a job for unreachable while neither https://8.8.8.8 nor
#                   https://1.1.1.1 answers; here 8.8.8.8 is an address of the namespace, with a certificate
set -euo pipefail
verb=$1
PATH=$PATH:/usr/sbin:/sbin

if [ "$verb" = install ]; then
    missing=
    command -v slurmctld >/dev/null || missing="$missing slurm-wlm"
    command -v munged >/dev/null || missing="$missing munge"
    command -v sshd >/dev/null || missing="$missing openssh-server"
    command -v rsync >/dev/null || missing="$missing rsync"
    if [ -z "$missing" ]; then exit 0; fi
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "missing, and no way to install it here:$missing" >&2
        exit 0
    fi
    echo "installing$missing"
    apt-get update -qq
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    exit
fi

folder=$2 port=${PENSTOCK_SKY_SLURM_PORT:-26800} home=$folder/home space=penstock-sky

if [ "$verb" = on ]; then
    shift 2
    HOME=$folder/client SKYPILOT_DISABLE_USAGE_COLLECTION=1 \
        PATH="$(cat "$folder/venv")/bin:$PATH" SSL_CERT_FILE=$folder/ssh/bundle.pem \
        REQUESTS_CA_BUNDLE=$folder/ssh/bundle.pem exec nsenter --net="/run/netns/$space" "$@"
fi

# A process with the host name, /tmp and home of a host; it ends with all its children when this is killed.
inside() { # NAME COMMAND…
    local name=$1
    shift
    mkdir -p "$folder/tmp.$name"
    setsid nohup unshare --mount --uts --pid --fork --kill-child --mount-proc bash -c '
        set -e
        name=$0 folder=$1 kept=$2
        shift 2
        hostname "$name"
        mount --bind "$folder/hosts" /etc/hosts
        mount --bind "$folder/tmp.$name" /tmp
        mount -t tmpfs -o size=2g tmpfs /dev/shm
        for path in $kept; do
            mkdir -p "$folder/home/$path"
            mount --bind "$HOME/$path" "$folder/home/$path"
        done
        mount --rbind "$folder/home" "$HOME"
        mkdir -p /run/sshd
        exec "$@"' "$name" "$folder" "$(cat "$folder/kept")" "$@" \
        >"$folder/log/$name.out" 2>&1 </dev/null &
    echo $! >>"$folder/pids"
}

user_machine() {
    ip netns add "$space"
    ip link add "$space" type veth peer name eth0 netns "$space"
    ip addr add 10.78.0.1/24 dev "$space"
    ip link set "$space" up
    ip -n "$space" addr add 10.78.0.2/24 dev eth0
    ip -n "$space" link set eth0 up
    ip -n "$space" link set lo up
    ip -n "$space" addr add 8.8.8.8/32 dev lo
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=8.8.8.8 -addext subjectAltName=IP:8.8.8.8 \
        -keyout "$folder/ssh/web.key" -out "$folder/ssh/web.pem" 2>/dev/null
    cat "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$folder/ssh/web.pem" >"$folder/ssh/bundle.pem"
    setsid nohup nsenter --net="/run/netns/$space" python3 -c '
import http.server, ssl, sys

class Answers(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()

server = http.server.ThreadingHTTPServer(("8.8.8.8", 443), Answers)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(*sys.argv[1:])
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()' "$folder/ssh/web.pem" "$folder/ssh/web.key" >"$folder/log/web.out" 2>&1 </dev/null &
    echo $! >>"$folder/pids"
}

up() {
    local nodes=$1 venv=$2
    case $folder in /tmp/*) echo "$folder: nodes have a /tmp of their own; take another folder" >&2; exit 2;; esac
    mkdir -p "$folder"/{state,log,munge,ssh,bin,home,client/.slurm,client/.sky}
    chmod 755 "$folder" "$folder/munge"
    : >"$folder/pids"
    echo "$venv" >"$folder/venv"

    # What the nodes need of this machine's home: the interpreters that live there.
    local python310 uv=$venv/bin/uv
    python310=$(command -v python3.10 || true)
    if [ -z "$python310" ] || ! "$python310" -V >/dev/null 2>&1; then
        python310=$(ls -d "$HOME"/.pyenv/versions/3.10.*/bin/python3.10 2>/dev/null | tail -1 || true)
    fi
    if [ -z "$python310" ]; then echo "no python3.10, which SkyPilot's runtime needs" >&2; exit 1; fi
    install -m 755 "$uv" "$folder/bin/uv"
    ln -sf "$python310" "$folder/bin/python3.10"
    for one in "$python310" ${KEEP:-}; do
        "$one" -c 'import os, sys; p = os.path.relpath(sys.base_prefix, os.environ["HOME"]); print(p) if not p.startswith("..") else None'
    done | sort -u >"$folder/kept"

    { echo "127.0.0.1 localhost"; echo "127.0.0.10 head"
      for i in $(seq "$nodes"); do echo "127.0.0.1$i n$i"; done; } >"$folder/hosts"
    head -c 1024 /dev/urandom >"$folder/munge/key"
    chmod 400 "$folder/munge/key"
    munged --force --socket="$folder/munge/socket" --key-file="$folder/munge/key" \
        --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" --seed-file="$folder/munge/seed"

    # The names of SkyPilot's clusters are the names of its jobs in Slurm. Their homes are shared.
    cat >"$folder/prolog" <<END
#!/bin/bash
mkdir -p "$HOME/.sky_clusters/\$SLURM_JOB_NAME/.local/bin"
ln -sf "$folder/bin/uv" "$HOME/.sky_clusters/\$SLURM_JOB_NAME/.local/bin/uv"
END
    chmod 755 "$folder/prolog"
    cat >"$folder/slurm.conf" <<END
ClusterName=skylab
SlurmctldHost=head(127.0.0.10)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/ctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/log/ctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
SlurmctldPort=$((port + 17))
PrologSlurmctld=$folder/prolog
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdTimeout=60
KillWait=5
MinJobAge=600
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
SlurmdParameters=config_overrides
END
    for i in $(seq "$nodes"); do
        echo "NodeName=n$i NodeHostname=n$i NodeAddr=127.0.0.1$i Port=$((port + 200 + i)) CPUs=8 RealMemory=16000 State=UNKNOWN"
    done >>"$folder/slurm.conf"
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=24:00:00 State=UP" >>"$folder/slurm.conf"

    # The start-up file of the user on the cluster, read by login shells; Slurm hands its variables to jobs.
    { echo "export SLURM_CONF=$folder/slurm.conf PATH=$folder/bin:\$PATH:/usr/sbin"
      echo "export UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never UV_PYTHON_PREFERENCE=only-system"
      env | grep -E '^(PIP_|UV_|SSL_CERT_)' | sed 's/^\([^=]*\)=\(.*\)$/export \1="\2"/' || true
    } >"$home/.profile"
    cp "$home/.profile" "$home/.bashrc"

    ssh-keygen -q -t ed25519 -N '' -f "$folder/ssh/host_key"
    ssh-keygen -q -t ed25519 -N '' -f "$folder/ssh/id"
    cp "$folder/ssh/id.pub" "$folder/ssh/authorized_keys"
    cat >"$folder/ssh/sshd_config" <<END
ListenAddress 10.78.0.1
Port $((port + 22))
HostKey $folder/ssh/host_key
AuthorizedKeysFile $folder/ssh/authorized_keys
PidFile $folder/ssh/pid
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
MaxSessions 200
MaxStartups 150:30:200
END
    cat >"$folder/client/.slurm/config" <<END
Host lab
    HostName 10.78.0.1
    Port $((port + 22))
    User $(id -un)
    IdentityFile $folder/ssh/id
    IdentitiesOnly yes
END
    cat >"$folder/client/.sky/config.yaml" <<END
jobs:
  controller:
    consolidation_mode: true
END

    user_machine
    HOME=$folder/client "$venv/bin/python" -c 'from sky.backends import wheel_utils as w; w.build_sky_wheel()' \
        >"$folder/log/wheel.out" 2>&1

    export SLURM_CONF=$folder/slurm.conf
    inside head bash -c "slurmctld -D -c -f $folder/slurm.conf & exec /usr/sbin/sshd -D -e -f $folder/ssh/sshd_config"
    for i in $(seq "$nodes"); do inside "n$i" slurmd -D -N "n$i" -f "$folder/slurm.conf"; done
    for _ in $(seq 300); do
        if [ "$(sinfo -h -p main -t idle -o %D 2>/dev/null)" = "$nodes" ]; then exit 0; fi
        sleep 0.2
    done
    echo "not all nodes are idle after 60 s" >&2
    sinfo >&2 || true
    tail -n 5 "$folder"/log/*.out >&2
    exit 1
}

case $verb in
up) up "$3" "$4" ;;
down)
    if [ -e "/run/netns/$space" ]; then
        "$0" on "$folder" sky api stop >/dev/null 2>&1 || true
        ip netns pids "$space" | xargs -r kill -9 || true
        ip netns del "$space"
    fi
    if [ -e "$folder/pids" ]; then xargs -r kill -9 <"$folder/pids" 2>/dev/null || true; fi
    if [ -e "$folder/munge/pid" ]; then kill "$(cat "$folder/munge/pid")" || true; fi
    ;;
*)
    echo "not a verb: $verb" >&2
    exit 2
    ;;
esac
