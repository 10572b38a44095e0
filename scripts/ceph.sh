#!/usr/bin/env bash
# A real S3 server for tests and benchmarks: Ceph RGW on an in-memory store, all in one folder.
#   scripts/ceph.sh start FOLDER [ADDRESS [PORT]]   prints the variables that clients read
#   scripts/ceph.sh bucket FOLDER NAME              makes a bucket
#   scripts/ceph.sh kill FOLDER | again FOLDER      the gateway alone: an outage and its end
#   scripts/ceph.sh refuse FOLDER | accept FOLDER   credentials that run out, and their renewal
#   scripts/ceph.sh stop FOLDER                     ends what was started here, and removes FOLDER
# Needs curl and ceph-mon ceph-osd radosgw ceph-common.
set -euo pipefail
verb=$1 folder=$(realpath -m "$2") address=${3:-127.0.0.1} port=${4:-9200}
export CEPH_CONF=$folder/ceph.conf
daemon() { # NAME COMMAND...: in the background, with its process id kept
    local name=$1
    shift
    "$@" -f </dev/null >"$folder/$name.log" 2>&1 &
    echo $! >"$folder/$name.pid"
}
end() { # NAME: by the id that was kept
    local file=$folder/$1.pid
    [ -f "$file" ] || return 0
    kill -9 "$(cat "$file")" 2>/dev/null || true
    while kill -0 "$(cat "$file")" 2>/dev/null; do sleep 0.1; done
    rm "$file"
}
gateway() {
    daemon rgw radosgw -n client.rgw
    local url
    url=$(cat "$folder/url")
    for _ in $(seq 300); do
        curl --noproxy '*' -s -o /dev/null "$url" && return
        sleep 0.1
    done
    echo "the gateway did not start; see $folder/rgw.log" >&2
    exit 1
}

case $verb in
start)
    mkdir -p "$folder"/{mon,osd,run}
    echo "http://$address:$port" >"$folder/url"
    cat >"$CEPH_CONF" <<CONF
[global]
fsid = $(cat /proc/sys/kernel/random/uuid)
mon host = [v2:$address:$((port + 1))/0]
public addr = $address
cluster addr = $address
keyring = $folder/keyring
run dir = $folder/run
log file = $folder/\$name.ceph.log
admin socket = $folder/run/\$name.asok
pid file =
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data = $folder/mon
[osd]
osd data = $folder/osd
osd objectstore = memstore
memstore device bytes = ${CEPH_BYTES:-4294967296}
osd op num shards = 2
ms bind port min = $((port + 10))
ms bind port max = $((port + 30))
[client.rgw]
rgw frontends = beast endpoint=$address:$port
rgw thread pool size = 64
CONF
    {
        key="$folder/keyring"
        ceph-authtool --create-keyring "$key" --gen-key -n mon. --cap mon 'allow *'
        ceph-authtool "$key" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *'
        ceph-authtool "$key" --gen-key -n client.rgw --cap mon 'allow *' --cap osd 'allow *'
        ceph-authtool "$key" --gen-key -n osd.0 --cap mon 'allow *' --cap osd 'allow *'
        fsid=$(sed -n 's/^fsid = //p' "$CEPH_CONF")
        monmaptool --create --fsid "$fsid" --addv a "[v2:$address:$((port + 1))]" "$folder/monmap"
        ceph-mon --mkfs -i a --monmap "$folder/monmap" --keyring "$key"
        daemon mon ceph-mon -i a
        ceph --connect-timeout 30 auth import -i "$key"
        osd=$(cat /proc/sys/kernel/random/uuid)
        ceph osd new "$osd"
        ceph-osd -i 0 --mkfs --osd-uuid "$osd"
        daemon osd ceph-osd -i 0
        gateway
        radosgw-admin user create --uid test --display-name test \
            --access-key penstock --secret-key penstock-secret
    } >"$folder/start.log" 2>&1
    echo "export AWS_ENDPOINT_URL=$(cat "$folder/url") AWS_ACCESS_KEY_ID=penstock \
AWS_SECRET_ACCESS_KEY=penstock-secret AWS_REGION=us-east-1"
    ;;
bucket)
    nothing=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 # SHA-256 of it
    curl --noproxy '*' -sf -H "x-amz-content-sha256: $nothing" \
        --aws-sigv4 aws:amz:us-east-1:s3 --user penstock:penstock-secret \
        -X PUT "$(cat "$folder/url")/$3"
    ;;
kill) end rgw ;;
again) gateway ;;
refuse) radosgw-admin user suspend --uid test >/dev/null ;;
accept) radosgw-admin user enable --uid test >/dev/null ;;
stop)
    for name in rgw osd mon; do end $name; done
    rm -rf "$folder"
    ;;
*) echo "not a verb: $verb" >&2; exit 2 ;;
esac
