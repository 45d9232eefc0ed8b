# Load it with: source <(dsat completion bash)
_dsat() {
  local IFS=$'\n'
  COMPREPLY=($(compgen -W "$(dsat complete "${COMP_WORDS[@]:1:COMP_CWORD}" | cut -f1)" \
    -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _dsat dsat
