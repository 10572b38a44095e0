#!/usr/bin/env bash
# A real Kubernetes API server for tests: no kubelets, but every object is checked and kept.
#   scripts/kube_apiserver.sh build                 builds it from Debian's source, once: minutes, 2 GB
#   scripts/kube_apiserver.sh start FOLDER [PORT]   etcd, API server and controllers; writes FOLDER/kubeconfig
#   scripts/kube_apiserver.sh stop FOLDER           ends what was started there, and removes FOLDER
# The programs are kept in KUBE_SERVER (~/.cache/penstock-kube). Needs root for apt, and openssl.
set -euo pipefail
verb=$1
kept=${KUBE_SERVER:-$HOME/.cache/penstock-kube}
programs="kube-apiserver kube-controller-manager"

build() {
    for one in $programs; do [ -x "$kept/$one" ] || missing=1; done
    [ "${missing:-}" ] || return 0
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        golang-go etcd-server golang-github-modern-go-reflect2-dev >/dev/null
    mkdir -p "$kept/apt" "$kept/lists/partial" "$kept/go/src/k8s.io"
    cd "$kept"
    if [ ! -d go/src/k8s.io/kubernetes ]; then
        sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >apt/src.sources
        local only="-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$kept/apt"
        only="$only -o Dir::State::lists=$kept/lists"
        apt-get -qq $only update
        apt-get -qq $only source --download-only kubernetes
        tar -xzf kubernetes_*.orig.tar.gz -C go/src/k8s.io
        mv go/src/k8s.io/kubernetes-* go/src/k8s.io/kubernetes
    fi
    export GOPATH=$kept/go GOCACHE=$kept/cache GO111MODULE=off CGO_ENABLED=0
    cd go/src/k8s.io/kubernetes
    # The vendored one crashes with Go 1.18 and later.
    rm -rf vendor/github.com/modern-go/reflect2
    cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
    if [ ! -f pkg/generated/openapi/zz_generated.openapi.go ]; then
        go build -o "$kept/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
        local tagged
        tagged=$({
            grep -rl --include='*.go' '+k8s:openapi-gen=' pkg
            cd staging/src
            grep -rl --include='*.go' '+k8s:openapi-gen=' k8s.io |
                grep -vE '^k8s.io/(code-generator|sample-apiserver)/' | sed 's,^,vendor/,'
        } | xargs -n 1 dirname | sort -u | sed 's,^,k8s.io/kubernetes/,' | paste -sd,)
        "$kept/openapi-gen" --output-base "$GOPATH/src" -p k8s.io/kubernetes/pkg/generated/openapi \
            -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt \
            -r "$kept/violations.txt" -i "$tagged" 2>/dev/null
    fi
    for one in $programs; do
        go build -trimpath -ldflags '-s -w' -o "$kept/$one" "./cmd/$one"
    done
    rm -rf "$kept/cache" "$kept/lists" "$kept/apt" "$kept/go" "$kept"/kubernetes_*
}

daemon() { # NAME COMMAND...: in the background, with its process id kept
    local name=$1
    shift
    "$@" </dev/null >"$folder/$name.log" 2>&1 &
    echo $! >"$folder/$name.pid"
}

start() {
    mkdir -p "$folder"
    openssl genrsa -out "$folder/account.key" 2048 2>/dev/null
    token=$(openssl rand -hex 16)
    echo "$token,admin,admin,system:masters" >"$folder/tokens.csv"
    daemon etcd etcd --data-dir "$folder/etcd" --listen-peer-urls "http://127.0.0.1:$((port + 2))" \
        --listen-client-urls "http://127.0.0.1:$((port + 1))" \
        --advertise-client-urls "http://127.0.0.1:$((port + 1))"
    daemon apiserver "$kept/kube-apiserver" --etcd-servers="http://127.0.0.1:$((port + 1))" \
        --bind-address=127.0.0.1 --secure-port="$port" --insecure-port=0 --cert-dir="$folder/certs" \
        --service-account-issuer=https://localhost --service-account-key-file="$folder/account.key" \
        --service-account-signing-key-file="$folder/account.key" \
        --service-cluster-ip-range=10.96.0.0/16 --token-auth-file="$folder/tokens.csv" \
        --authorization-mode=RBAC --disable-admission-plugins=ServiceAccount
    cat >"$folder/kubeconfig" <<EOF
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: admin}}]
clusters: [{name: test, cluster: {server: "https://127.0.0.1:$port", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
EOF
    for _ in $(seq 600); do
        kubectl --kubeconfig "$folder/kubeconfig" get namespace default >/dev/null 2>&1 && break
        kill -0 "$(cat "$folder/apiserver.pid")" || { tail -n 5 "$folder/apiserver.log" >&2; exit 1; }
        sleep 0.2
    done
    daemon controllers "$kept/kube-controller-manager" --kubeconfig="$folder/kubeconfig" \
        --leader-elect=false --controllers=garbagecollector,namespace --port=0 --secure-port=0
}

stop() {
    for one in controllers apiserver etcd; do
        [ -f "$folder/$one.pid" ] || continue
        kill -9 "$(cat "$folder/$one.pid")" 2>/dev/null || true
    done
    rm -rf "$folder"
}

case $verb in
build) build ;;
start | stop) folder=$(realpath -m "$2") port=${3:-16443} && $verb ;;
esac
