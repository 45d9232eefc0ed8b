#!/bin/sh
# Stands in for salloc, srun, scontrol and squeue, by the name of the link that starts it. The words
# of each call are appended to $FAKE_SLURM/calls. salloc gives two nodes, w0 and w1 of fake_ssh.sh,
# when $FAKE_SLURM/free is there; it refuses the job if $FAKE_SLURM/refused is, and revokes it if
# $FAKE_SLURM/revoked is. squeue prints $FAKE_SLURM/steps.
name=${0##*/}
case "$name $*" in
  salloc*--export*) echo "salloc: unrecognized option '--export=ALL'" >&2; exit 255 ;;
  salloc*--version) echo "slurm 22.05.8"; exit ;;
esac
echo "$name $*" >> "$FAKE_SLURM/calls"
case $name in
  salloc)
    echo "salloc: Pending job allocation 7" >&2
    trap 'echo "salloc: Job allocation 7 has been revoked." >&2; : > "$FAKE_SLURM/returned"; exit 1' HUP
    while [ ! -e "$FAKE_SLURM/free" ]; do
      if [ -e "$FAKE_SLURM/refused" ]; then
        echo "salloc: error: Job submit/allocate failed: no such account" >&2
        exit 1
      fi
      if [ -e "$FAKE_SLURM/revoked" ]; then
        echo "salloc: error: Requested node configuration is not available" >&2
        echo "salloc: Job allocation 7 has been revoked." >&2
        exit 1
      fi
      sleep 0.02
    done
    echo "salloc: Granted job allocation 7" >&2
    while [ "$1" != /bin/sh ]; do shift; done
    SLURM_JOB_ID=7 SLURM_JOB_NODELIST='w[0-1]' SLURM_TASKS_PER_NODE='2(x2)' "$@"
    : > "$FAKE_SLURM/returned"
    ;;
  srun)
    case $* in *--test-only*) env > "$FAKE_SLURM/tested"; echo "srun: Job 7 to start at now using 4 processors on nodes w[0-1] in partition debug" >&2; exit ;; esac
    env | grep ^SLURM_ | sort > "$FAKE_SLURM/seen"
    for word in "$@"; do
      case $word in --nodelist=*) node=${word#*=} ;; esac
    done
    while [ "$1" != /bin/sh ]; do shift; done
    DSAT_TEST_HOST=$node CUDA_VISIBLE_DEVICES=$FAKE_DEVICES SLURM_NTASKS=1 SLURM_PROCID=0
    SLURM_LAUNCH_NODE_IPADDR=127.0.0.1
    export DSAT_TEST_HOST CUDA_VISIBLE_DEVICES SLURM_NTASKS SLURM_PROCID SLURM_LAUNCH_NODE_IPADDR
    exec "$@"
    ;;
  squeue) cat "$FAKE_SLURM/steps" 2>/dev/null ;;
  scontrol)
    case $2 in
      hostnames) echo w0; echo w1 ;;
      partition) echo "PartitionName=$3 MaxNodes=UNLIMITED MaxTime=1-02:00:00 MinNodes=0" ;;
      node) echo "NodeName=w0 NodeAddr=127.0.0.1 NodeHostName=w0" ;;
      job) echo "   JobState=$(cat "$FAKE_SLURM/state" 2>/dev/null || echo RUNNING) Reason=TimeLimit Dependency=(null)" ;;
    esac
    ;;
esac
