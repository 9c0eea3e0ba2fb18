#!/usr/bin/env bash
# The one menu of commands, for people and for CI. `./ci.sh help` lists it.
set -euo pipefail
cd "$(dirname "$0")"

target=${CARGO_TARGET_DIR:-target}
memcached=$target/memcached
tools=$target/tools

#: help                 this list
cmd_help() {
    echo "usage: ./ci.sh COMMAND [ARGS]"
    echo
    sed -n 's/^#: /  /p' "$0"
}

#: test [ARGS]          every test that needs only Rust; ARGS go to cargo test
cmd_test() {
    run cargo test --workspace "$@"
}

#: quick                checks before each commit: fmt, clippy, tidy, unit tests; 3 minutes once built
cmd_quick() {
    cmd_fmt
    run cargo clippy --workspace --all-targets -- -D warnings
    run cargo test --workspace --lib --bins --test tidy
}

#: fmt                  check the format (cargo fmt --all fixes it)
cmd_fmt() {
    run cargo fmt --all --check
}

#: lint                 clippy over everything, warnings are errors
cmd_lint() {
    run cargo clippy --workspace --all-targets -- -D warnings
    # The smallest server: fibers and threads, no event loops, no TCP/IP, no TLS. Then every engine without TLS.
    run cargo clippy --package weftwork-serve --lib -- -D warnings
    run cargo clippy --package weftwork-serve --lib --features event,netstack,pipeline -- -D warnings
    # The command as it is installed.
    run cargo clippy --package weftwork --no-default-features --all-targets -- -D warnings
}

#: docs                 build the crates' documentation, warnings are errors
cmd_docs() {
    RUSTDOCFLAGS="-D warnings" run cargo doc --workspace --no-deps
}

#: tidy                 style rules that a program can check: crate dependencies, links, golden files, lines
cmd_tidy() {
    # --workspace reuses the build of `test`: one package alone resolves other features, and its dependencies would be
    # rebuilt.
    run cargo test --workspace --test tidy
}

#: build                the release binary with the laboratory, and the laboratory's programs
cmd_build() {
    run cargo build --release --package weftwork --package weftwork-programs
}

#: site [DIR]           examples/site with compressed variants and a large file, in target/site or DIR
cmd_site() {
    need python3 python3
    need brotli brotli
    need zstd zstd
    need gzip gzip
    local site=${1:-$target/site} file
    say "site in $site"
    rm -rf "$site"
    mkdir -p "$(dirname "$site")"
    cp -R examples/site "$site"
    while IFS= read -r -d '' file; do
        # -n omits name and time, so the same site gives the same bytes.
        gzip -9 -n -k "$file"
        brotli -q 11 -k "$file"
        zstd -q -19 -k "$file"
    done < <(find "$site" -type f \( -name '*.html' -o -name '*.css' -o -name '*.svg' -o -name '*.txt' \
        -o -name '*.csv' -o -name '*.tsv' -o -name '*.json' \) -size +512c -print0)
    python3 examples/draw.py sound "$site/data/loom.wav" 40
    du -sh "$site"
}

#: models               model-check the lock-free parts with loom: every order of their steps, within bounds
cmd_models() {
    # A separate build, because --cfg loom changes the crates. No LTO: it takes longer than the models. Overflow checks
    # are on, as in a debug build.
    RUSTFLAGS="--cfg loom" CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true \
        CARGO_TARGET_DIR=$target/loom \
        run cargo test --package weftwork-fiber --package weftwork-cache --lib --release "$@" models
}

#: asan                 the fiber crate's tests under AddressSanitizer, with stack switches announced to it
cmd_asan() {
    local triple seconds=100 program name
    triple="$(uname -m)-unknown-linux-gnu"
    local -a build=(cargo test --package weftwork-fiber --features sanitizer --target "$triple" --lib --tests)
    # RUSTC_BOOTSTRAP makes a stable compiler accept -Zsanitizer.
    local -x RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=$target/asan
    run "${build[@]}" --no-run
    [[ ${1-} == --no-run ]] && return
    # No leak detection: a stopped runtime leaves unfinished fibers behind, by design, and the sanitizer does not search
    # their stacks for pointers.
    # An allocation beyond the memory fails, as malloc(3) does: std and the crate report it as an error.
    local options=detect_leaks=0:allocator_may_return_null=1
    for program in $("${build[@]}" --no-run --message-format=json 2>/dev/null \
        | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'); do
        name=$(basename "$program")
        # Its tests limit the address space; the sanitizer reserves terabytes.
        [[ $name == memory-* ]] && continue
        # Its tests count the crate's instructions; the sanitizer adds its own.
        [[ $name == cost-* ]] && continue
        local own=$options
        # The runtime's own handler of SIGSEGV is under test.
        [[ $name == fatal-* ]] && own=$options:handle_segv=0
        ASAN_OPTIONS=$own run timeout --kill-after=5 "$seconds" "$program" --quiet \
            || die "$name failed under AddressSanitizer, or did not end in $seconds s"
    done
}

#: valgrind             the fiber crate's tests on epoll under memcheck, which is told of the stacks; reports are errors
cmd_valgrind() {
    local seconds=90 test program
    need valgrind valgrind
    # rustix's own system calls look for the vDSO, which valgrind hides. valgrind 3.19 holds its one lock while
    # io_uring_enter sleeps, so epoll only. The two skipped tests have hundreds of connections and take minutes.
    export RUSTFLAGS="--cfg rustix_use_libc" CARGO_TARGET_DIR=$target/valgrind
    for test in migration stackless datagrams; do
        program=$(cargo test --package weftwork-fiber --test "$test" --no-run --message-format=json 2>/dev/null \
            | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
        run timeout --kill-after=5 "$seconds" valgrind --quiet --error-exitcode=99 "$program" --test-threads=1 epoll:: \
            --skip conversations_at_once --skip starves_nobody \
            || die "$test failed under valgrind, or did not end in $seconds s"
    done
}

#: fuzz [SECONDS]       fuzz every target, each for SECONDS (60), as many at once as there are processors
cmd_fuzz() {
    local seconds=${1:-60} running=0 failed=0 processors fuzzer
    processors=$(nproc)
    run fuzz/build
    for fuzzer in $(fuzz_targets); do
        if ((running == processors)); then
            wait -n || failed=1
            running=$((running - 1))
        fi
        fuzz_one "$fuzzer" "$seconds" &
        running=$((running + 1))
    done
    for (( ; running > 0; running--)); do
        wait -n || failed=1
    done
    # Repeat the failures below the output of all targets: the last lines are the ones that are read.
    ((failed == 0)) || grep -aE 'panicked at|^==.*ERROR|^error|^Base64|found something' target/fuzz-*.log | cut -c1-400
    return "$failed"
}

#: soak [SECONDS]       the netstack's simulations with new seeds, each for SECONDS (300)
cmd_soak() {
    local seconds=${1:-300} seeds=1000 test program first end
    for test in two_hosts full_stack hostile; do
        program=$(cargo test --profile checked --package weftwork-netstack --test "$test" --no-run --message-format=json \
            | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
        [[ -n $program ]] || die "$test was not built"
        first=$(($(date +%s) * 1000000))
        end=$((SECONDS + seconds))
        while ((SECONDS < end)); do
            say "$test: seeds from $first on"
            NETSTACK_FIRST_SEED=$first NETSTACK_SEEDS=$seeds "$program" --quiet || die "$test failed, with the seed above"
            first=$((first + seeds))
        done
    done
}

#: system [ARGS]        the system suite (root): real clients against the release binary, with overflow checks; ARGS as in
#:                      tests/system/run.py
cmd_system() {
    [[ $(id -u) == 0 ]] || die "the system suite needs root: it sets limits, drops privileges and turns io_uring off and on"
    need python3 python3 curl curl wget wget ab apache2-utils wrk wrk httperf httperf chromium chromium \
        systemd-socket-activate systemd systemd-nspawn systemd-container openssl openssl memcached memcached \
        nginx nginx-light lighttpd lighttpd haproxy haproxy caddy caddy memccapable libmemcached-tools \
        nutcracker nutcracker unshare util-linux ip iproute2 tmux tmux promtool prometheus mpirun openmpi-bin \
        gcc gcc go golang-go faketime faketime certbot certbot lego lego testssl testssl.sh hexdump bsdextrautils \
        dig dnsutils pyflakes3 pyflakes3 srun slurm-wlm ssh openssh-client sshd openssh-server
    cmd_memcached
    # For packages without a wheel, which pip builds from source.
    [[ -e /usr/include/libmemcached/memcached.h ]] || apt_get install libmemcached-dev zlib1g-dev python3-venv python3-dev
    if [[ ! -x $target/python/bin/kubernetes-validate ]]; then
        python3 -m venv "$target/python"
        run "$target/python/bin/pip" --quiet install kubernetes-validate==1.37.0
    fi
    # Find a misspelled name before the suite runs.
    run pyflakes3 tests/system
    system_builds
    ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || apt_get install postgresql
    cmd_libraries
    cmd_debian_root
    cmd_deb checked
    cmd_site
    cmd_book
    PATH="$(realpath "$memcached"):$PATH" run python3 tests/system/run.py --binary "$target/checked/weft" --site "$target/site" "$@"
}

#: memcached            build memcached from Debian unstable, with its proxy, to compare `weft cache` with (root)
cmd_memcached() {
    # Debian's stable releases have a version that is years old.
    [[ -x $memcached/memcached ]] && "$memcached/memcached" --help | grep proxy_config >/dev/null && return
    need make make
    [[ -e /usr/include/event.h ]] || apt_get install libevent-dev
    local folder mirror
    folder=$(mktemp -d)
    # The machine's own mirror, with separate package lists, so that nothing else is installed from unstable.
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' | sed -n 1p)
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$folder/sources.list"
    mkdir -p "$folder/lists/partial" "$memcached"
    local -a unstable=(-o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$folder/lists" -o APT::Sandbox::User=root)
    run apt-get -qq "${unstable[@]}" update
    (cd "$folder" && run apt-get -qq "${unstable[@]}" source --download-only --tar-only memcached)
    tar --extract --directory "$folder" --strip-components 1 --file "$folder"/memcached_*.orig.tar.*
    (cd "$folder" && run ./configure --quiet --enable-proxy >/dev/null \
        && run make --silent --directory vendor >/dev/null && run make --silent memcached >/dev/null)
    mv "$folder/memcached" "$memcached/memcached"
    rm -r "$folder"
    "$memcached/memcached" -V
}

#: libraries            build examples/libraries, other people's libraries on fibers (root, for SQLite's library)
cmd_libraries() {
    [[ -e /usr/include/sqlite3.h ]] || apt_get install libsqlite3-dev
    CARGO_TARGET_DIR=$(realpath "$target")/libraries run cargo build --locked --release \
        --manifest-path examples/libraries/Cargo.toml
}

#: deb [PROFILE]        the Debian package of PROFILE's binary (release) and its debug symbols, in target/debian
cmd_deb() {
    local profile=${1:-release}
    # The manifest names this folder.
    local files=target/package-files
    need python3 python3
    need_cargo cargo-deb 3.8.0
    installed "$profile"
    rm -rf "$files"
    mkdir -p "$files/man"
    "$target/$profile/weft" man --dir "$files/man"
    "$target/$profile/weft" completions bash >"$files/weft.bash"
    "$target/$profile/weft" completions zsh >"$files/_weft"
    "$target/$profile/weft" completions fish >"$files/weft.fish"
    python3 tools/licenses.py >"$files/licenses.txt"
    PATH="$(realpath "$tools")/bin:$PATH" run cargo deb --package weftwork --no-build --profile "$profile" --dbgsym
}

#: static               the binary without shared libraries, in target/TRIPLE/release (glibc's; see RELEASE.md for musl)
cmd_static() {
    local triple profile=${1:-release}
    triple="$(uname -m)-unknown-linux-gnu"
    # With an explicit target, the flag does not apply to build scripts and macros.
    RUSTFLAGS="-C target-feature=+crt-static" installed "$profile" --target "$triple"
}

#: same [ARGS]          check that builds in two folders have the same bytes (slow); ARGS: profile, package and program
#:                      (release weftwork weft)
cmd_same() {
    local profile=${1:-release} package=${2:-weftwork} program=${3:-weft} folder hash first='' root output
    output=${profile/#dev/debug}
    for folder in one two; do
        root=$(mktemp -d)/$folder
        git clone --quiet . "$root"
        (
            cd "$root"
            export CARGO_TARGET_DIR="$root/target"
            export RUSTFLAGS="--remap-path-prefix=$root=/weftwork --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo"
            if [[ $package == weftwork ]]; then
                installed "$profile"
            else
                run cargo build --locked --profile "$profile" --package "$package" --no-default-features
            fi
        )
        # strip seeks in its output, which therefore cannot be a pipe.
        strip --strip-all "$root/target/$output/$program"
        hash=$(sha256sum <"$root/target/$output/$program")
        rm -rf "$(dirname "$root")"
        say "$hash"
        [[ -z $first || $first == "$hash" ]] || die "two builds differ"
        first=$hash
    done
}

#: supply               check licences, sources and versions of dependencies (cargo deny, which takes minutes to build)
cmd_supply() {
    need_cargo cargo-deny 0.20.2
    PATH="$(realpath "$tools")/bin:$PATH" run cargo deny --locked check licenses bans sources
}

#: book                 the project's web page from README and docs (mdBook), in target/book/html
cmd_book() {
    need python3 python3
    need_cargo mdbook 0.5.4 --no-default-features --features search
    run python3 tools/book.py "$target/book"
    run "$tools/bin/mdbook" build "$target/book"
}

#: bom                  the bill of materials of the command (CycloneDX), target/weft.cdx.json
cmd_bom() {
    need_cargo cargo-cyclonedx 0.5.9
    PATH="$(realpath "$tools")/bin:$PATH" run cargo cyclonedx --manifest-path crates/weft/Cargo.toml --no-default-features --format json \
        --target "$(uname -m)-unknown-linux-gnu" --override-filename weft.cdx
    mv crates/weft/weft.cdx.json "$target/weft.cdx.json"
    # cargo cyclonedx writes one beside each crate of the workspace.
    find crates -name weft.cdx.json -delete
}

#: smallest             check that everything compiles with the oldest versions that the manifests allow
cmd_smallest() {
    local folder
    folder=$(mktemp -d)
    git clone --quiet . "$folder/weftwork"
    mkdir -p "$target"
    export CARGO_TARGET_DIR
    CARGO_TARGET_DIR=$(realpath "$target")/smallest
    # RUSTC_BOOTSTRAP makes a stable cargo accept -Z. The check runs without it, because crates would detect a nightly.
    (cd "$folder/weftwork" && RUSTC_BOOTSTRAP=1 run cargo -Z direct-minimal-versions generate-lockfile \
        && run cargo check --workspace --all-targets)
    rm -rf "$folder"
}

#: crates               package every crate, compile all from the packages, and build a newcomer's program with fiber
#:                      from a registry of these packages
cmd_crates() {
    local folder=$target/package/unpacked package name registry
    need python3 python3
    run cargo publish --dry-run --locked --workspace --no-verify --quiet
    run cargo package --locked --workspace --no-verify --quiet
    rm -rf "$folder"
    mkdir -p "$folder"
    for package in "$target"/package/*.crate; do
        tar --extract --directory "$folder" --file "$package"
    done
    {
        printf '[workspace]\nresolver = "3"\nmembers = ["weftwork*"]\n[patch.crates-io]\n'
        for package in "$folder"/weftwork*; do
            name=$(basename "$package")
            printf '%s = { path = "%s" }\n' "${name%-[0-9]*}" "$name"
        done
    } >"$folder/Cargo.toml"
    # The workspace's versions, whose dependencies are compiled already.
    cp Cargo.lock "$folder/"
    run cargo check --manifest-path "$folder/Cargo.toml" --target-dir "$target" --workspace
    # Cargo caches a registry by its address, so changed packages need a new address.
    registry=$(realpath "$target")/registry/$(cat "$target"/package/*.crate | sha256sum | cut -c 1-16)
    rm -rf "$target/registry"
    run python3 tools/tutorial.py "$target/package" "$registry"
    export CARGO_REGISTRIES_WEFTWORK_INDEX=file://$registry/index
    (cd "$registry/tutorial" && run cargo add --quiet weftwork-fiber --registry weftwork)
    run cargo build --manifest-path "$registry/tutorial/Cargo.toml" --target-dir "$target"
}

#: debian_root          a clean root file system of this Debian release, for testing the package (root)
cmd_debian_root() {
    local root=$target/debian-root mirror
    [[ -e $root/usr/bin/curl ]] && return
    need mmdebstrap mmdebstrap
    # The machine's own mirror.
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' | sed -n 1p)
    rm -rf "$root"
    run mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,curl \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" "$mirror"
}

#: lab [ARGS]           run experiments of the laboratory (root); ARGS as for weft lab run (web cache generator)
cmd_lab() {
    [[ $(id -u) == 0 ]] || die "the laboratory needs root: for a network namespace, and priority over other programs"
    need nginx nginx-light
    need lighttpd lighttpd
    need memcached memcached
    need wrk wrk
    need httperf httperf
    cmd_build
    (($#)) || set -- web cache generator
    run "$target/release/weft" lab run "$@"
}

#: ahead                build the programs of later CI steps
cmd_ahead() {
    cmd_models --no-run
    cmd_asan --no-run
    run fuzz/build
    system_builds
}

#: all                  the steps of CI (.ci/run) and supply, with 60 s of fuzzing per target
cmd_all() {
    cmd_test
    cmd_fmt
    cmd_lint
    cmd_docs
    cmd_tidy
    cmd_supply
    cmd_crates
    cmd_models
    cmd_asan
    cmd_fuzz 60
    cmd_system
}

# ---- helpers

say() { printf '\n── %s\n' "$*"; }

run() {
    say "$*"
    "$@"
}

die() {
    printf 'ci.sh: %s\n' "$*" >&2
    exit 1
}

# need COMMAND PACKAGE…: installs every PACKAGE whose COMMAND is missing, in one call of apt-get, or fails: a check
# that cannot run has not passed.
need() {
    local -a missing=() pairs=("$@")
    while (($#)); do
        command -v "$1" >/dev/null || missing+=("$2")
        shift 2
    done
    ((${#missing[@]})) || return 0
    say "installing ${missing[*]}"
    command -v apt-get >/dev/null || die "missing packages: ${missing[*]}; there is no apt-get, so install them by hand"
    [[ $(id -u) == 0 ]] || die "missing packages (as root: apt-get install ${missing[*]})"
    if ! apt_get install "${missing[@]}"; then
        apt_get update && apt_get install "${missing[@]}" || die "not installed: ${missing[*]}"
    fi
    set -- "${pairs[@]}"
    while (($#)); do
        command -v "$1" >/dev/null || die "the package $2 was installed, but has no $1"
        shift 2
    done
}

# need_cargo NAME VERSION [ARGS]: installs a program of the registry, once, built without optimisation.
need_cargo() {
    [[ -x $tools/bin/$1 ]] && return
    CARGO_PROFILE_DEV_DEBUG=0 run cargo install --quiet --locked --debug --root "$tools" --target-dir "$tools/build" "$1" --version "${@:2}"
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends "$@" </dev/null
}

# installed PROFILE [ARGS]: builds the command as packages have it, without the laboratory. A release has fat LTO and
# identical code folding (by lld, rustc's own linker on x86-64): smaller and as fast, but a backtrace may name another
# function with the same code.
installed() {
    local profile=$1
    local -a build=(--locked --profile "$profile" --package weftwork --bin weft --no-default-features "${@:2}")
    if [[ $profile == release && $(uname -m) == x86_64 ]]; then
        run cargo rustc "${build[@]}" -- -C lto=fat -C link-arg=-Wl,--icf=all
    else
        run cargo build "${build[@]}"
    fi
}

system_builds() {
    # The installed binary, but for two differences (see profile `checked`, and `installed`), hosts on netstack devices,
    # and the server of docs/your-own-server.md for the netstack. One command, so that dependencies are built once, with
    # the binary's features.
    run cargo build --profile checked --no-default-features --package weftwork \
        --package weftwork-netstack --package weftwork-serve --bins --example answer --example ask --example line
    # The laboratory, which measures that binary: as the tests have it, so that CI does not build it again.
    run cargo test --workspace --no-run
}

fuzz_targets() {
    sed -n '/^\[\[bin\]\]/,/^$/s/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml
}

# fuzz_one TARGET SECONDS: prints the output at the end, so that the targets' outputs do not mix.
fuzz_one() {
    local corpus=$PWD/target/fuzz-corpus/$1 log=$PWD/target/fuzz-$1.log status=0
    mkdir -p "$corpus"
    FUZZ_CORPUS=$corpus fuzz/run "$1" "$2" -print_final_stats=1 >"$log" 2>&1 || status=$?
    ((status == 0)) || echo "fuzz $1 found something: the input lies in fuzz/artifacts" >>"$log"
    say "fuzz/run $1 $2"$'\n'"$(<"$log")"
    return "$status"
}

command=${1:-help}
[[ $command == -h || $command == --help ]] && command=help
shift || true
declare -F "cmd_$command" >/dev/null || { cmd_help >&2; die "there is no command '$command'"; }
"cmd_$command" "$@"
