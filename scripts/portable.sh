#!/usr/bin/env bash
# Builds the library and the command so that they load with glibc 2.28 and later, whatever glibc
# this host has: target/portable/release, for `make deb` and `make tarball`.
#
# A linker takes the newest version of each function that it finds. Here it finds, before this
# host's libraries, empty ones that name the versions of 2.28, and an archive of what came to glibc
# after that. At the end the script looks at what the files ask for.
# docs/decisions/023-one-package-for-glibc-2.28.md.
#
#   scripts/portable.sh           builds
#   scripts/portable.sh --check FILE...   only the look at files
set -euo pipefail
cd "$(dirname "$0")/.."
oldest=2.28

# Fails, and names them, where a file asks for versions that the oldest glibc does not have.
check() {
    local file newer status=0
    for file; do
        newer=$(objdump -T "$file" | sed -n 's/.*(\?GLIBC_\([0-9.]*\))\? *\(.*\)/\1 \2/p' |
            while read -r version name; do
                last=$(printf '%s\n' "$oldest" "$version" | sort -V | tail -n 1)
                [ "$last" = "$oldest" ] || echo "$name@$version"
            done)
        [ -z "$newer" ] || { echo "$file needs a glibc newer than $oldest:" $newer >&2; status=1; }
    done
    return "$status"
}
if [ "${1-}" = --check ]; then check "${@:2}"; exit; fi

cc=${CC:-cc}
# Cargo builds anew where the flags are others, and so where these files are.
sum=$(cat scripts/portable.sh scripts/portable/*.c | cksum)
link=$PWD/target/portable/link-${sum%% *}
rm -rf target/portable/link-*
mkdir -p "$link"

# old NAME "VERSION FUNCTION..."...: an empty shared library of this name.
old() {
    local name=$1 node function functions
    shift
    echo '.section .note.GNU-stack, "", @progbits; .text' >"$link/$name.s"
    for node; do
        # shellcheck disable=SC2206 # a list of words
        functions=($node)
        printf '%s { global:' "${functions[0]}" >>"$link/$name.map"
        for function in "${functions[@]:1}"; do
            printf ' %s;' "$function" >>"$link/$name.map"
            printf '.globl %s\n.type %s, @function\n%s: ret\n' "$function"{,,} >>"$link/$name.s"
        done
        echo ' };' >>"$link/$name.map"
    done
    "$cc" -shared -nostdlib -Wl,-soname,"$name" -Wl,--version-script="$link/$name.map" \
        -o "$link/$name" "$link/$name.s"
}
# The last four Rust's library uses where they are there. At this version they are nowhere, ever.
old libpthread.so.0 'GLIBC_2.12 pthread_setname_np' \
    'GLIBC_2.2.5 pthread_attr_getguardsize pthread_attr_getstack pthread_attr_setstacksize
    pthread_create pthread_detach pthread_getattr_np pthread_getspecific pthread_join
    pthread_key_create pthread_key_delete pthread_once pthread_setspecific
    pidfd_getpid pidfd_spawnp posix_spawn_file_actions_addchdir
    posix_spawn_file_actions_addchdir_np'
old libdl.so.2 'GLIBC_2.2.5 dladdr dlclose dlerror dlopen dlsym dlvsym'

for part in math old start; do
    "$cc" -O2 -fPIC -Wall -Werror -c -o "$link/$part.o" "scripts/portable/$part.c"
done
ar rcs "$link/libold.a" "$link"/{math,old,start}.o

# What the linker finds by -lc and -lm: these, and then what it would have found.
of_host() { "$cc" -print-file-name="$1"; }
group() {
    printf 'GROUP ( "%s" AS_NEEDED ( "%s" "%s" ) "%s" )\n' \
        "$link/"{libold.a,libpthread.so.0,libdl.so.2} "$(of_host "$1")" >"$link/$1"
}
group libc.so
group libm.so

# This character stands between the words of the flags, so a folder may have a space in its name.
# With a target, the flags are not for what runs during the build.
export CARGO_ENCODED_RUSTFLAGS=-L$'\x1f'native=$link
unset RUSTFLAGS
cargo=${CARGO:-cargo}
target=$("$cargo" -vV | sed -n 's/^host: //p')
"$cargo" build --release -p sluice-preload -p sluice-cli \
    --target "$target" --target-dir target/portable
install -D -t target/portable/release "target/portable/$target/release/"{libsluice.so,sluice}
check target/portable/release/{libsluice.so,sluice}
