"""The scripts that shells read. Each asks this program what the word under the cursor may become.

They call the program as it was typed, so that `.venv/bin/cloister` completes as `cloister` does. bash takes a word
apart at = and :, and replaces only what comes after; the other shells replace the whole word.
"""

from __future__ import annotations

_BASH = r"""
_cloister_completion() {
    local word
    COMPREPLY=()
    while IFS= read -r word; do  # an unquoted list would be matched with files, which takes backslashes away
        COMPREPLY+=("$word")
    done < <("$1" completion bash -- "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -F _cloister_completion cloister
"""

_ZSH = r"""
#compdef cloister
_cloister_completion() {
    local -a lines open closed open_shown closed_shown
    local line value
    lines=("${(@f)$("${(Q)words[1]}" completion zsh -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    for line in $lines; do
        value="${line%%$'\t'*}"
        line="${line/$'\t'/  }"
        if [[ $value == *[=/] ]]; then
            open+=("$value") open_shown+=("$line")
        elif [[ -n $value ]]; then
            closed+=("$value") closed_shown+=("$line")
        fi
    done
    (( $#closed )) && compadd -l -d closed_shown -a closed
    (( $#open )) && compadd -l -S '' -d open_shown -a open
    (( $#closed + $#open ))
}
if [[ $funcstack[1] == _cloister ]]; then
    _cloister_completion "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _cloister_completion cloister
fi
"""

_FISH = r"""
function __cloister_completion
    set -l before (commandline -opc)
    command $before[1] completion fish -- $before[2..-1] (commandline -ct) 2>/dev/null
end
complete --command cloister --no-files --arguments '(__cloister_completion)'
"""

SCRIPTS = {"bash": _BASH.lstrip(), "zsh": _ZSH.lstrip(), "fish": _FISH.lstrip()}
