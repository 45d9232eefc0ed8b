#compdef dsat
# Load it with: source <(dsat completion zsh)
_dsat() {
  local line
  local -a found
  for line in ${(f)"$(dsat complete "${(@)words[2,CURRENT]}")"}; do
    found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
  done
  if (( $#found )); then _describe dsat found; else _files; fi
}
compdef _dsat dsat
