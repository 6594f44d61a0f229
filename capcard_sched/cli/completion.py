"""`capcard-sched completion`: completion scripts of shells, and the completion of `kubectl capcard`."""

from __future__ import annotations

import sys
from typing import Final, Literal

from capcard_sched.cli.main import main
from capcard_sched.cli.output import put

#: bash splits words at `=`; the script joins them, and bash replaces the part after the `=`.
_BASH: Final = r"""
_capcard_sched() {
    local word joined="" line directive="" words=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        if [[ ${#words[@]} -gt 0 && ( $word == "=" || -n $joined ) ]]; then
            words[${#words[@]}-1]+=$word
        else
            words+=("$word")
        fi
        joined=""
        [[ $word == "=" ]] && joined=1
    done
    word=${words[${#words[@]}-1]}
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ -n $directive ]]; then
            printf -v directive %q "${directive#"${word%%=*}="}"
            COMPREPLY+=("$directive")
        fi
        directive=$line
    done < <("${COMP_WORDS[0]}" __complete "${words[@]}" 2>/dev/null)
    [[ $directive == ":0" ]] && compopt -o default 2>/dev/null
}
complete -F _capcard_sched capcard-sched
"""
#: The file of an autoloaded function is the body of its first call; sourced, it registers the function.
_ZSH: Final = r"""
#compdef capcard-sched
_capcard-sched() {
    local -a candidates
    candidates=("${(@f)$(${(Q)~words[1]} __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    local directive=$candidates[-1]
    candidates[-1]=()
    (( $#candidates )) && compadd -a candidates
    if [[ $directive == ":0" ]]; then
        compset -P '*='
        _files
    fi
}
if [[ $funcstack[1] == _capcard-sched ]]; then
    _capcard-sched "$@"
else
    compdef _capcard-sched capcard-sched
fi
"""
_FISH: Final = r"""
function __capcard_sched_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l candidates ($words[1] __complete $words[2..-1] 2>/dev/null)
    set -l directive $candidates[-1]
    set -e candidates[-1]
    printf '%s
' $candidates
    if test "$directive" = ":0"
        set -l flag (string match -r '^--[^=]*=' -- $words[-1])
        __fish_complete_path (string replace -- "$flag" "" $words[-1]) | string replace -r '^' -- "$flag"
    end
end
complete -c capcard-sched -f -a '(__capcard_sched_complete)'
"""
_SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the completion script of a shell, for `capcard-sched`.

    bash: `source <(capcard-sched completion bash)`; zsh: the same after `compinit`, or written to `_capcard-sched` in a
    folder of $fpath; fish: `capcard-sched completion fish | source`. `kubectl capcard` is completed by kubectl 1.26 or
    newer, which runs `kubectl_complete-capcard` of the PATH.

    Args:
        shell: The shell.
    """
    put(_SCRIPTS[shell].strip())


def complete_for_kubectl() -> None:
    """The entry point `kubectl_complete-capcard`: prints a candidate per line, and a directive last."""
    sys.argv[1:1] = ["__complete"]
    main()
