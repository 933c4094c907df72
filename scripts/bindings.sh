#!/usr/bin/env bash
# What the library knows of verbs.h and rdma_cma.h: docs/decisions/022-verbs-bindings.md.
#
#   scripts/bindings.sh           makes src/fabric/src/verbs/ffi/generated.rs anew from this host's
#                                 headers
#   scripts/bindings.sh --check   compares that file with them. Newer headers may add to it. Last
#                                 line: N passed, N failed
#
# Needs the headers of rdma-core and libclang (scripts/install-deps.sh --bindings), and bindgen,
# which cargo builds into target/tools.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/target/tools/bin:$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
bindgen=0.72.1
kept=src/fabric/src/verbs/ffi/generated.rs
folder=$(mktemp -d "${TMPDIR:-/tmp}/sluice-bindings-XXXXXX")
trap 'rm -rf "$folder"' EXIT

scripts/install-deps.sh --bindings
[ "$(bindgen --version 2>/dev/null)" = "bindgen $bindgen" ] ||
    cargo install -q --locked --force --root target/tools --version "$bindgen" bindgen-cli

# The types that src/fabric/src/verbs names, and those that these consist of.
verbs='async_event|comp_channel|context|cq|device_attr|mr|pd|port_attr|qp|qp_attr|qp_init_attr|srq
    |srq_attr|srq_init_attr|recv_wr|send_wr|sge|wc|access_flags|qp_attr_mask|send_flags|node_type
    |port_state|transport_type|qp_state|qp_type|wc_opcode|wc_status|wr_opcode|event_type'
cm='cm_event|cm_event_type|cm_id|conn_param|event_channel|port_space'
# Of these the size is enough.
sizes='rdma_route|rdma_ud_param|_compat_ibv_port_attr|_ibv_device_ops
    |ibv_(mw|mw_bind|mw_bind_info|wq|ah|ah_attr|global_route)'
words() { tr -d ' \n' <<<"$1"; }

echo '#include <rdma/rdma_cma.h>' >"$folder/headers.h"
bindgen "$folder/headers.h" --output "$folder/made.rs" --rust-edition 2024 --rust-target 1.85 \
    --allowlist-type "ibv_($(words "$verbs"))|rdma_($(words "$cm"))" \
    --opaque-type "$(words "$sizes")" \
    --default-enum-style moduleconsts --no-prepend-enum-name --no-doc-comments --no-derive-debug \
    --blocklist-type '(__)?pthread_.*|__atomic_.*' --no-layout-tests --use-core \
    --disable-header-comment
{
    cat <<'HEAD'
// Made by scripts/bindings.sh from the headers of rdma-core, which have this notice:
//
// Copyright (c) 2004, 2005 Topspin Communications. All rights reserved.
// Copyright (c) 2004, 2011-2012 Intel Corporation. All rights reserved.
// Copyright (c) 2005, 2006, 2007 Cisco Systems, Inc. All rights reserved.
// Copyright (c) 2005 PathScale, Inc. All rights reserved.
// Copyright (c) 2005 Voltaire Inc. All rights reserved.
//
// SPDX-License-Identifier: Linux-OpenIB

use libc::{pthread_cond_t, pthread_mutex_t};

HEAD
    sed 's/::core::option::Option/Option/g' "$folder/made.rs"
} >"$folder/generated.rs"
rustfmt --edition 2024 "$folder/generated.rs"

case ${1-} in
"") mv "$folder/generated.rs" "$kept" ;;
--check)
    . scripts/lib/count.sh
    gone=$(diff "$kept" "$folder/generated.rs" | grep '^<' || true)
    hold "$([ -z "$gone" ]; echo $?)" "generated bindings" "the headers do not have: $gone" || true
    over
    ;;
*) echo "usage: $0 [--check]" >&2; exit 2 ;;
esac
