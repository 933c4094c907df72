#!/usr/bin/env bash
# Puts README.md, and all pages that it leads to, into a folder: `scripts/docs-tree.sh FOLDER`. The
# pages lie there as they do in the repository, so their links work. Where one would not, this
# fails and names it.
set -euo pipefail
to=$(realpath -m "${1:?the folder}")
cd "$(dirname "$0")/.."

# Files and folders of the repository that a page links to, as paths from its top.
links() {
    local link
    grep -o ']([^)# ]*' "$1" | cut -c3- | sort -u | while read -r link; do
        [[ -z $link || $link == *://* ]] || realpath -m --relative-to=. "$(dirname "$1")/$link"
    done
}

pages=(README.md CHANGELOG.md SECURITY.md LICENSE-MIT LICENSE-APACHE
    docs/*.md docs/*.[1-9] docs/decisions/*.md)
for ((at = 0; at < ${#pages[@]}; at++)); do
    page=${pages[at]}
    install -D -m 644 "$page" "$to/$page"
    [[ $page == *.md ]] || continue
    for link in $(links "$page"); do
        [ ! -e "$to/$link" ] || continue
        [[ " ${pages[*]} " == *" $link "* ]] || [ ! -f "$link" ] || pages+=("$link")
    done
done
for page in "${pages[@]}"; do
    [[ $page == *.md ]] || continue
    for link in $(links "$page"); do
        if [ ! -e "$to/$link" ]; then
            echo "$page links to $link, which is not among the pages" >&2
            exit 1
        fi
    done
done
