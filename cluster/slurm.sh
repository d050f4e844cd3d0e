#!/bin/bash
#SBATCH --time=04:00:00 --signal=TERM@300 --requeue --open-mode=append
# Five minutes before the time is up, all tasks save and exit with status 143; the job is then queued again.
# In a job array, @ in a command stands for the number of the task.
srun --kill-on-bad-exit lingua-flax "${@//@/${SLURM_ARRAY_TASK_ID:-@}}"
status=$?
if [ "$status" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
