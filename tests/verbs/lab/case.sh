# Functions for the scripts of cases, which begin with this file. They end the script, which then has failed: with 7 when a job
# ended otherwise than it should, with 8 when what was counted or measured is not as it must be. What they say begins with
# "lab: ", and verbs_lab.py shows it.
# shellcheck shell=sh

now() { cut -d ' ' -f 1 /proc/uptime; }

# sent_by DEVICE: the packets that it has sent so far.
sent_by() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"; }
sent() { sent_by rxe0; }

# at_least LEAST NUMBER WHAT...: so many must there be.
at_least() {
  least=$1
  number=$2
  shift 2
  echo "lab: $number $*"
  [ "$number" -ge "$least" ] || exit 8
}

# at_work PID PACKETS: waits until the device has sent so many more, for a job that must not end before.
at_work() {
  until_sent=$(($(sent) + $2))
  while [ "$(sent)" -lt "$until_sent" ]; do
    kill -0 "$1" || exit 7
    sleep 0.1
  done
}

# dropped: the packets that a loss made by tc has dropped so far.
dropped() { tc -s qdisc show dev eth0 | grep -A 1 netem | grep -o 'dropped [0-9]*' | grep -o '[0-9]*'; }

# lost: there must have been a loss.
lost() { at_least 1 "$(dropped)" packets were dropped; }

# losing PID: waits until there is one, for a job that must not end before.
losing() {
  until [ "$(dropped)" -gt 0 ]; do
    kill -0 "$1" || exit 7
    sleep 0.1
  done
}

# fault: tells all guests that it happens now.
fault() {
  began=$(now)
  touch "/together/fault.$PORT"
}

# verdict LIMIT PID...: waits for the fault, and for the ends of the processes, each of which must fail, at most LIMIT seconds
# after it.
verdict() {
  limit=$1
  shift
  until [ -n "$began" ] || [ -e "/together/fault.$PORT" ]; do sleep 0.1; done
  began=${began:-$(now)}
  for pid; do
    wait "$pid" && exit 7
  done
  awk "BEGIN { took = $(now) - $began; printf \"lab: verdict after %.1f s\\n\", took; exit took > $limit }" || exit 8
}
