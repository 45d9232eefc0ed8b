# Load it with: dsat completion fish | source
function __dsat_complete
    set -l found (dsat complete (commandline -opc)[2..] (commandline -ct))
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c dsat -f -a '(__dsat_complete)'
